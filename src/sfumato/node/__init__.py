"""The data owner's node: a guarded door to records that stay at home."""
