"""Sealed sums: the secret half. Identities, keys of a run, masks, and what must be remembered of them. No record is seen here."""
