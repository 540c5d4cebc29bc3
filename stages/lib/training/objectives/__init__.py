"""Objectives: the loss of a micro-batch, and the figures that it adds to the metrics."""
