"""Headless Chromium over the pipe of the DevTools protocol: what a page logs, requests and shows."""

import contextlib
import itertools
import json
import os
import select
import shutil
import subprocess
import sys
import time

import pytest

needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="Debian's chromium is not installed")
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--remote-debugging-pipe"),
]
SECONDS = 60


class Browser:
    """One page of a browser. `errors`: console errors and exceptions; `requests`: URLs that are not files or data."""

    def __init__(self, to_browser, from_browser):
        self.writer, self.reader = to_browser, from_browser
        self.numbers, self.buffer, self.session = itertools.count(1), b"", None
        self.errors, self.requests = [], []
        self.contexts = []  # (session, number) of each document, frames included
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        # frames of a data: URL are processes of their own, whose logs come by their own sessions
        self.call("Target.setAutoAttach", autoAttach=True, waitForDebuggerOnStart=False, flatten=True)

    def call(self, method, session=None, **parameters):
        """Call a method of the protocol; returns its result."""
        number = self._send(method, session or self.session, parameters)
        while (message := self._receive()).get("id") != number:
            self._note(message)
        assert "error" not in message, message
        return message["result"]

    def _send(self, method, session, parameters):
        number = next(self.numbers)
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        os.write(self.writer, json.dumps(message).encode() + b"\0")
        return number

    def _receive(self):
        end = time.monotonic() + SECONDS
        while b"\0" not in self.buffer:
            assert select.select([self.reader], [], [], max(end - time.monotonic(), 0))[0], "the browser hangs"
            read = os.read(self.reader, 1 << 20)
            assert read, "the browser ended"
            self.buffer += read
        line, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(line)

    def _note(self, message):
        method, found = message.get("method"), message.get("params", {})
        if method == "Target.attachedToTarget":
            for domain in ("Runtime", "Log", "Network"):
                self._send(f"{domain}.enable", found["sessionId"], {})
        if method == "Runtime.executionContextCreated":
            self.contexts.append((message["sessionId"], found["context"]["id"]))
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(found["exceptionDetails"])[:500])
        if method == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            self.errors.append(json.dumps(found["args"])[:500])
        if method == "Log.entryAdded" and found["entry"]["level"] == "error":
            self.errors.append(found["entry"]["text"])
        if method == "Network.requestWillBeSent":
            url = found["request"]["url"]
            if not url.startswith(("file:", "data:", "blob:", "about:")):
                self.requests.append(url)

    def open(self, path, width=1400, height=900, dark=False, settle=0.5):
        """Open a file in a window of this size, and wait until it is loaded and `settle` more seconds."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        self.call("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.contexts.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        self.until("document.readyState === 'complete'")
        time.sleep(settle)
        return self

    def evaluate(self, expression):
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def in_any_frame(self, condition):
        """Return whether a JavaScript condition holds in the document or in one of its frames."""
        return any(self._evaluate_in(session, number, condition) for session, number in [*self.contexts])

    def _evaluate_in(self, session, number, expression):
        sent = self._send("Runtime.evaluate", session, {"expression": expression, "contextId": number})
        while (message := self._receive()).get("id") != sent:
            self._note(message)
        return message.get("result", {}).get("result", {}).get("value")  # a frame that is gone has none

    def until(self, condition):
        """Wait until a JavaScript condition holds."""
        end = time.monotonic() + SECONDS
        while not self.evaluate(condition):
            assert time.monotonic() < end, f"never true: {condition}"
            time.sleep(0.05)

    def drag(self, start, end):
        """Drag the mouse from one (x, y) to another."""
        for kind, at in (("Moved", start), ("Pressed", start), ("Moved", end), ("Released", end)):
            x, y = at
            self.call("Input.dispatchMouseEvent", type=f"mouse{kind}", x=x, y=y, button="left", buttons=1, clickCount=1)


@contextlib.contextmanager
def browser(profile):
    """Start Chromium with its profile in a directory, and end it after the block."""
    command_read, command_write = os.pipe()
    answer_read, answer_write = os.pipe()
    start = [sys.executable, "-c", STARTER, str(command_read), str(answer_write), "chromium", *FLAGS]
    process = subprocess.Popen(
        [*start, f"--user-data-dir={profile}"],
        pass_fds=(command_read, answer_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(command_read), os.close(answer_write)
    try:
        made = Browser(command_write, answer_read)
        yield made
        made.session = None
        made.call("Browser.close")
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.wait()
        os.close(command_write), os.close(answer_read)


STARTER = """
import fcntl, os, sys
commands, answers = (fcntl.fcntl(int(number), fcntl.F_DUPFD, 10) for number in sys.argv[1:3])
os.dup2(commands, 3), os.dup2(answers, 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""
"""Chromium reads commands from descriptor 3 and writes answers to 4."""
