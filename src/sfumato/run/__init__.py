"""A run: what is asked of the owners, chunk after chunk, and what comes out."""
