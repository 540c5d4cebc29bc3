"""Check, before jobs start, that their results can be written."""

from __future__ import annotations

import os
from pathlib import Path

from scripts.config_references import ConfigError


def check_writable(directory: Path) -> None:
    """Raise ConfigError if a directory, or the place where it will be made, cannot be written."""
    place = next(path for path in (directory.absolute(), *directory.absolute().parents) if os.path.lexists(path))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        raise ConfigError(f"{directory} must be a directory that can be written, and {place} cannot be written")
