"""The chain of digests from a score back to the raw files, as `tools.verify --chain` walks it."""
