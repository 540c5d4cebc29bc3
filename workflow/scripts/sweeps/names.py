"""Names of the runs of a sweep: short, legal as file names, and the same for the same grid."""

import hashlib
import re
from typing import Any

MAX_NAME = 100
MAX_VALUE = 32  # characters of a value in a name


def name_of(sweep: str, values: dict[str, Any]) -> str:
    """Return the name of a run: the sweep's, and each axis with its value. `values`: {key: value}."""
    keys = labels(list(values))
    words = [f"{keys[key]}_{text_of(value)}" for key, value in values.items()]
    return shortened("-".join([sweep, *words]))


def labels(keys: list[str]) -> dict[str, str]:
    """Return {key: its shortest end that no other key has}."""
    return {key: _label(key.split("."), [other.split(".") for other in keys if other != key]) for key in keys}


def _label(parts: list[str], others: list[list[str]]) -> str:
    for length in range(1, len(parts)):
        if all(other[-length:] != parts[-length:] for other in others):
            return ".".join(parts[-length:])
    return ".".join(parts)


def text_of(value: Any) -> str:
    """Return a value as part of a name: letters, digits, dots, dashes and underscores."""
    plain = shown(value)
    text = re.sub(r"[^A-Za-z0-9_.-]+", "-", plain)
    if isinstance(value, (dict, list)) and len(text) <= MAX_VALUE:
        return text
    return text if text == plain and len(text) <= MAX_VALUE else f"{text[:20]}-{_digest(plain)}"


def shown(value: Any) -> str:
    """Return a value in short, for a name or a message."""
    if isinstance(value, bool) or value is None:
        return str(value).lower().replace("none", "null")
    if isinstance(value, (int, float)):
        return repr(int(value) if abs(value) < 1e15 and value == int(value) else value).replace("+", "")
    if isinstance(value, dict):
        return "-".join(f"{key}-{shown(item)}" for key, item in value.items())
    return "-".join(map(shown, value)) if isinstance(value, list) else str(value)


def shortened(name: str) -> str:
    """Return a name of at most MAX_NAME characters: of a longer one its start and a digest."""
    return name if len(name) <= MAX_NAME else f"{name[: MAX_NAME - 9]}-{_digest(name)}"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
