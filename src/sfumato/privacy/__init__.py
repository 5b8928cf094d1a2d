"""Accounting: exact Gaussian DP, the paper's composition, the unit of account, the statement."""
