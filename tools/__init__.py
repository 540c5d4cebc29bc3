"""Tools beside the workflow: `python -m tools.NAME`."""
