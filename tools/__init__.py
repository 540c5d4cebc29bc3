"""What people run beside the workflow, one module each; each is run as `python -m tools.NAME`."""
