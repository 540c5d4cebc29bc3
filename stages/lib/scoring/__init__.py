"""Scoring with lm-evaluation-harness, and the local tasks that are made from validation data for it."""
