"""`python -m tests.slurm.guard PREFIX`: waits for the end of its input, then stops and deletes a cluster.

The input is a pipe that a test session holds open. It ends with that session: by a statement, a Ctrl-C or a SIGKILL.
"""

import shutil
import sys

from tests.slurm.cluster import stop

if __name__ == "__main__":
    sys.stdin.read()
    stop(sys.argv[1])
    shutil.rmtree(sys.argv[1], ignore_errors=True)
