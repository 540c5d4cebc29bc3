"""The checks of `tools.doctor`, one module each, and the runner that does them on all ranks of a job."""
