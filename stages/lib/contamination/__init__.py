"""Contamination: items of suites whose n-grams stand in the training text."""
