"""What holds for all tests."""

import signal

# A shell that starts the tests in the background ignores SIGINT, and children inherit that: no Ctrl-C would reach them.
signal.signal(signal.SIGINT, signal.default_int_handler)
