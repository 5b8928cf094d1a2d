"""What several test files share."""

FALSE_ALARM = 1e-5
"""Chance that one statistical test fails although the code is right; a test of several statistics divides it."""
CAUGHT = 1e-12
"""A saboteur must be rejected far beyond the false-alarm rate, so that no luck of the draw hides it."""
