"""The stages hold against the siege, and the siege notices if they do not."""

import os
import random
import subprocess
import sys
from dataclasses import dataclass

import pytest

from tests.siege.attacks import kill
from tests.siege.chain import Step
from tests.siege.place import Place


@pytest.mark.long
@pytest.mark.timeout(900)
def test_no_stage_falls(tmp_path):
    command = [sys.executable, "-m", "tests.siege", "--minutes", "10", "--attempts", "40"]
    command += ["--kinds", "kill", "damage", "disk", "command-line"]  # memory depends on the machine
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]


@dataclass(frozen=True)
class Careless(Step):
    """A stage that believes any result which exists, and writes its own in two parts."""

    def run(self):
        if not os.path.exists("results/made"):
            for mode in "wa":
                with open("results/made", mode) as file:
                    file.write("half")
        return 0


@dataclass(frozen=True)
class Careful(Step):
    """The same with a rename."""

    def run(self):
        with open("results/new", "w") as file:
            file.write("all")
        os.rename("results/new", "results/made")
        return 0


@pytest.mark.parametrize(("stage", "faults"), [(Careless, {None, "changed results/made"}), (Careful, {None})])
def test_a_result_that_a_kill_left_half_written_is_noticed(tmp_path, stage, faults):
    finished = Place(tmp_path / "finished" / "place")
    (finished.directory / "results").mkdir(parents=True)
    step = stage("none", (), ("results/made",))
    assert finished.run(step).code == 0
    (tmp_path / "attacked").mkdir()
    rng = random.Random(0)
    assert {kill.attack(finished, tmp_path / "attacked" / "place", step, rng)[2] for _ in range(12)} == faults
