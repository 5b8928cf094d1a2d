"""The version, which files, nodes and reports name."""

__version__ = "0.1.0"
