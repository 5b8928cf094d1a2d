"""What `sfumato demo` shows."""
