"""The checks of `tools.doctor`, one module each, and how the ranks of a job do them together."""
