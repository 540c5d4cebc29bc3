"""Metrics of a training: measurement, files and trackers."""
