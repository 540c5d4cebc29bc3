"""What stands in a run directory beside checkpoints: the lease, events, and the history of attempts."""
