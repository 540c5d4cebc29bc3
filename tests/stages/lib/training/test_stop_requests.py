"""Requests to stop that come at an awkward moment."""

import os
import signal

from stages.lib.training.stop_requests import FILE_SECONDS, REASONS, StopRequests


def test_a_signal_during_the_look_for_the_file_is_not_lost(tmp_path):
    class Directory(type(tmp_path)):
        def exists(self, **_):
            os.kill(os.getpid(), signal.SIGTERM)
            return False

    requests = StopRequests(Directory(tmp_path), None, 0)
    with requests.handle_signals():
        requests._checked -= FILE_SECONDS
        requests.code()
        assert REASONS[requests.code()] == "SIGTERM"
