"""Scores: lm-evaluation-harness, and the tasks that are made here for it."""
