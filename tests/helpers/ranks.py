"""Run a module on several ranks as workflow/launch does, in forks of a process that has imported torch already.

Imports take each rank 5 s of CPU time, and torchrun's agent 3 s more. Tests of the launcher itself call `launch`.
"""

import atexit
import functools
import importlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
PRELOADED = ("stages.lib.training.run", "stages.lib.distributed.process_group", "stages.lib.tokens.corpus")


def run_module(ranks, module, arguments):
    """Run `python -m module` on `ranks` ranks; return (exit code, what they printed)."""
    asked = {"ranks": ranks, "module": module, "arguments": [str(argument) for argument in arguments]}
    process = _server()
    try:
        print(json.dumps(asked | {"environment": dict(os.environ), "cwd": os.getcwd()}), file=process.stdin, flush=True)
        code, text = json.loads(process.stdout.readline())
    except BaseException:  # a test that ran out of time: the next one must not read its answer
        process.kill()
        _server.cache_clear()
        raise
    return code, text


@functools.cache
def _server():
    """Return the process that forks; it ends with this one. It computes nothing: threads are not forked."""
    command = [sys.executable, "-m", "tests.helpers.ranks"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HOME)
    atexit.register(process.stdin.close)
    return process


def _serve():
    from tests.helpers import forked

    for name in PRELOADED:
        importlib.import_module(name)
    scratch = Path(tempfile.mkdtemp())  # no TemporaryDirectory: forks that run exit handlers would delete it
    try:
        for line in sys.stdin:
            asked = json.loads(line)
            call = functools.partial(_run, asked["module"], asked["arguments"])
            os.environ.clear()
            os.environ.update(asked["environment"])
            ended = forked.run(call, Path(asked["cwd"]), asked["ranks"], scratch=scratch)
            print(json.dumps([ended.code, ended.text]), flush=True)
    finally:
        shutil.rmtree(scratch)


def _run(module, arguments):
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    _serve()
