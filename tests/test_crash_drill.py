"""The whole workflow is killed repeatedly at random moments, and ends in the bits of the undisturbed one."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.test_end_to_end import CONFIG, HOME, write_texts

KILLS = 5

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


def start(directory, *arguments):
    """Start the workflow in its own session."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", HOME / "workflow/Snakefile", "--directory", directory]
    command += ["--profile", HOME / "profiles/local", *arguments, "--configfile", directory / "my.yaml"]
    with open(directory / "output.txt", "a") as output:
        return subprocess.Popen(command, cwd="/", stdout=output, stderr=output, start_new_session=True)


def kill_all(directory):
    """SIGKILL every process that works in `directory`: the driver, its jobs, their ranks."""
    for _ in range(3):
        for entry in filter(str.isdigit, os.listdir("/proc")):
            try:
                if os.readlink(f"/proc/{entry}/cwd") == str(directory) or works_on(entry, directory):
                    os.kill(int(entry), signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.2)


def works_on(entry, directory):
    """Return True if the process names the directory in its arguments."""
    with open(f"/proc/{entry}/cmdline", "rb") as file:
        return os.fsencode(directory) in file.read() and int(entry) != os.getpid()


def weights(directory):
    """Return the sha256 of the tensor files of both milestones."""
    found = {}
    for path in sorted((directory / "results/runs/tiny/models").glob("*.json")):
        outputs = json.loads(path.read_text())["identity"]["outputs"]
        found[path.name] = {name: file["sha256"] for name, file in outputs.items() if name.endswith(".distcp")}
    return found


def scores(directory):
    """Return every score, as text."""
    return (directory / "results/scores.csv").read_text()


def test_killed_workflow_ends_in_the_same_bits(tmp_path):
    places = [tmp_path / "undisturbed", tmp_path / "killed"]
    config = CONFIG.replace("steps: 12", "steps: 120\n      checkpoint: {every: 10}").replace("[6, 12]", "[60, 120]")
    for place in places:
        write_texts(place)
        (place / "my.yaml").write_text(config)
    assert start(places[0], "all").wait(timeout=600) == 0, (places[0] / "output.txt").read_text()
    chance = random.Random(time.time_ns())
    killed = 0
    while True:
        driver = start(places[1], "all")
        try:
            ended = driver.wait(timeout=chance.uniform(3, 25) if killed < KILLS else 600)
        except subprocess.TimeoutExpired:
            kill_all(places[1])
            driver.wait()
            killed += 1
            assert start(places[1], "--unlock", "all").wait(timeout=60) == 0
            continue
        assert ended == 0, (places[1] / "output.txt").read_text()[-4000:]
        break
    print(f"killed {killed} times")
    assert killed >= 1
    assert len(weights(places[1])) == 2
    assert weights(places[1]) == weights(places[0])
    assert scores(places[1]) == scores(places[0])
