"""What several test files share."""

FALSE_ALARM = 1e-5
"""Chance that one statistical test fails although the code is right; a test of several statistics divides it."""
