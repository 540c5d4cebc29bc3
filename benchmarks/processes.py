"""Wall and CPU time of a command, over all processes that it starts."""

import resource
import subprocess
import time


def timed(command, environment=None, **options):
    """Run a command; return its seconds and CPU-seconds, its own processes' included. Its output is dropped."""
    before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run([str(word) for word in command], env=environment, check=True, capture_output=True, **options)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": used}
