"""Text of the Python installation, for the kinds python-*."""
