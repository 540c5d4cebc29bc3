"""Files of a run directory beside the checkpoints: lease, events, metrics, and the history of attempts."""
