"""What holds for all tests."""

import os
import signal

# Before torch is imported: the tests' models are tiny, and threads that wait for each other make them slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background ignores SIGINT, and children inherit that: no Ctrl-C would reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)
