"""The demonstration of several owners: three insurers, three nodes, one answer that none of them has alone."""

EPSILON = 3.0
"""What each insurer promises. Three who do not trust each other are worth one with a third of that budget (in mu squared)."""
DELTA = 1e-5
"""Well below one in 5 249, the size of the smallest table."""
