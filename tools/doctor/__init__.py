"""The checks of `tools.doctor`, and the runner that does them on all ranks of a job."""
