"""A time limit on a call that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any


class CallTimeout(Exception):
    """The call did not return in time."""


def call_with_timeout(function: Callable[[], Any], seconds: float) -> Any:
    """Return what `function()` returns. Raises CallTimeout after `seconds`; the call then continues in its thread.

    It uses a thread, not a signal: a call in a library or on a dead file system does not return to Python.
    """
    done = {}

    def call() -> None:
        try:
            done["value"] = function()
        except BaseException as error:
            done["error"] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise CallTimeout
    if "error" in done:
        raise done["error"]
    return done["value"]
