"""Settings and fixtures of all tests."""

import multiprocessing.process
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

# Before torch is imported: the tests' models are tiny, and threads that wait for each other make them slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A shell that starts the tests in the background ignores SIGINT, and child processes inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

SLOW_COMMAND = re.compile(r"python[0-9.]*|launch|snakemake|make|bash|torchrun")
SLURM = "tests/slurm/"
LONGEST = (
    *(SLURM, "tests/drill/", "tests/test_demo.py", "tests/test_crash_drill.py", "tests/benchmarks/test_gpu.py"),
    *("tests/test_readme.py", "tests/test_end_to_end.py"),
)
LAST = ("tests/benchmarks", "tests/workflow", "tests/test_", "tests/drill", SLURM)


def pytest_addoption(parser):
    """Add the option of `make test-fast`."""
    parser.addoption("--no-processes", action="store_true", help="skip each test that starts a Python process")


def pytest_configure(config):
    """Give the profile `ci` the same examples in each run; skip each start of a Python process for `--no-processes`."""
    if config.getoption("--hypothesis-profile", None) == "ci":
        from hypothesis.internal.conjecture import providers

        # Some examples are constants of the modules that the tests before happened to import: an empty set of them.
        providers._get_local_constants = lambda: providers._local_constants
    if config.getoption("--no-processes") and not config.getoption("numprocesses", None):
        # in the workers of xdist, if it starts some: their number is given to its first process alone
        start = subprocess.Popen.__init__
        config.add_cleanup(lambda: setattr(subprocess.Popen, "__init__", start))

        def start_no_python(self, args, *more, **options):
            words = [args] if isinstance(args, str | os.PathLike) else args
            if any(SLOW_COMMAND.fullmatch(Path(word).name) for word in words):
                _skip()
            start(self, args, *more, **options)

        subprocess.Popen.__init__ = start_no_python
        multiprocessing.process.BaseProcess.start = _skip


def _skip(*_):
    pytest.skip("starts a process")


def pytest_collection_modifyitems(items):
    """Run the tests of single stages first, then those of the whole workflow, and those of a cluster last.

    If several workers run, the longest files are first, so that no worker has one of them left at the end.
    """
    items.sort(key=lambda item: _number(item, LAST, 0))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=lambda item: _number(item, LONGEST, len(LONGEST) + 1))


def _number(item, starts, default):
    return next((number for number, start in enumerate(starts, 1) if item.nodeid.startswith(start)), default)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Give each worker whole files, and one worker all tests of the cluster, so that there is one cluster."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return SLURM if nodeid.startswith(SLURM) else super()._split_scope(nodeid)

    return Scheduling(config, log)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Manifest of a tiny corpus."""
    from tests.helpers.data_fixtures import tiny_corpus

    return tiny_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def uninterrupted(corpus, tmp_path_factory):
    """Results of an uninterrupted run of 30 steps on one rank."""
    from tests.helpers.training import train

    results = tmp_path_factory.mktemp("uninterrupted")
    assert train(corpus, results, 30) == 0
    return results
