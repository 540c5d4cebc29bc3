"""Comparison of trained models: their recipes, and the paired differences of their scores."""
