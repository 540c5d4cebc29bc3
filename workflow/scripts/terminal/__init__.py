"""Output of the workflow: a line per job, reasons of failures, the last line."""
