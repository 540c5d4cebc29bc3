"""Content of `tools.status`: the state of a run directory, the queue, and one line per run."""
