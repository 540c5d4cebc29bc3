"""A call that may hang, and gets so many seconds."""

import threading


class Limit(Exception):
    """The call did not come back in time."""


def limited(function, seconds):
    """What `function()` returns or raises. Raises Limit after so many seconds, and leaves the call to its thread.

    A thread, and no signal: a call in a library or in a dead file system does not come back to Python.
    """
    done = {}

    def call():
        try:
            done["value"] = function()
        except BaseException as error:
            done["error"] = error

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise Limit
    if "error" in done:
        raise done["error"]
    return done["value"]
