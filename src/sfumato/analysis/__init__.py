"""What comes after the draws, or beside them: diagnostics, the verdict, the noise-aware posterior, the report."""
