"""Ablation: speed and memory of a run's training step under other settings, for `tools.ablate`."""
