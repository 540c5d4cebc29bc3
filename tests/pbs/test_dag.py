"""The workflow with profiles/pbs on a stand-in for PBS: two-node trainings, time limits, Ctrl-C."""

import csv
import os
import signal
import subprocess
import sys

import pytest
import yaml

from tests.helpers import processes
from tests.pbs.stand_in import HOME
from tests.test_end_to_end import CONFIG, write_texts

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


class Place:
    """A working directory with a config, and a copy of profiles/pbs with the sizes of a test."""

    def __init__(self, path, pbs):
        self.path, self.pbs = path, pbs
        write_texts(path)
        (path / "my.yaml").write_text(CONFIG, encoding="utf-8")
        (path / "profile").mkdir()
        settings = yaml.safe_load((HOME / "profiles/pbs/profile.yaml").read_text(encoding="utf-8"))
        for rule in ("pretrain", "finetune"):
            settings["set-resources"][rule] |= {"nodes": 2, "ranks": 1, "ngpus": 0, "omp_threads": 1}
        settings |= {"latency-wait": 5, "seconds-between-status-checks": 1, "jobs": 4}
        (path / "profile/profile.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")

    def start(self, *arguments):
        """Start Snakemake in its own session."""
        command = [sys.executable, "-m", "snakemake", *arguments, "--profile", "profile", "--configfile", "my.yaml"]
        command += ["--snakefile", HOME / "workflow/Snakefile"]
        kept = {name: value for name, value in self.pbs.environment.items() if name != "PYTHONPATH"}
        with open(self.path / "said", "a", encoding="utf-8") as said:
            return subprocess.Popen(command, cwd=self.path, env=kept, stdout=said, stderr=said, start_new_session=True)

    def make(self, *arguments):
        """Run Snakemake to its end; it must succeed."""
        assert self.start(*arguments).wait(600) == 0, self.said()

    def said(self):
        return (self.path / "said").read_text(encoding="utf-8")

    def jobs(self, rule):
        """Return what the stand-in knows of each job of a rule."""
        found = [self.pbs.attributes(job) for job in self.pbs.jobs()]
        return [attributes for attributes in found if attributes["name"].startswith(f"{rule}_")]


@pytest.fixture
def place(pbs, tmp_path):
    """An empty working directory with a space in its name."""
    path = tmp_path / "a place"
    path.mkdir()
    return Place(path, pbs)


def test_profile_takes_texts_to_scores_with_trainings_on_two_nodes(place):
    place.make("all")
    with open(place.path / "results/scores.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["run"].startswith("trivial ")]
    assert {row["step"] for row in rows} == {"6", "12"}
    trainings = place.jobs("pretrain")
    assert [job["name"] for job in trainings] == ["pretrain_tiny_00000006", "pretrain_tiny_00000012"]
    assert {job["resources"]["select"] for job in trainings} == {"2:ncpus=8:mem=64000mb"}
    (checkpoint,) = place.path.glob("results/runs/tiny/train/*/checkpoints/00000012")
    assert len(list(checkpoint.glob("*.distcp"))) == 2


def test_training_that_ran_out_of_time_is_submitted_again_until_ctrl_c_deletes_it(place):
    config = yaml.safe_load(CONFIG)
    config["runs"]["tiny"]["pretrain"] |= {"steps": 4000, "milestones": [4000]}
    (place.path / "my.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    running = place.start("models", "--retries", "0")
    metrics = "results/runs/tiny/train/*/metrics.jsonl"
    processes.wait_until(lambda: list(place.path.glob(metrics)), 200, "the training began")
    (run,) = place.path.glob("results/runs/tiny/train/*")
    (run / "stop").touch()
    processes.wait_until(lambda: len(place.jobs("pretrain")) == 2, 60, "the job was submitted again")
    processes.wait_until(lambda: '"resume"' in (run / "events.jsonl").read_text(), 60, "it resumed")
    assert place.jobs("pretrain")[0]["code"] == 75
    os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the running poll gets it too
    assert running.wait(60) == 1, place.said()
    processes.wait_until(lambda: place.jobs("pretrain")[1]["state"] == "F", 60, "Ctrl-C deleted the second job")


def test_job_that_died_is_submitted_again_and_its_log_is_shown(place):
    site = place.path / "environment.sh"
    site.write_text(
        "[[ -e died ]] || [[ $PBS_JOBNAME != train_tokenizer* ]] || { touch died; echo bad node; exit 3; }\n"
    )
    place.pbs.environment |= {"CARAVAN_SITE": str(site)}
    place.make("tokenizers")
    assert [job["code"] for job in place.jobs("train_tokenizer")] == [1, 0]
    assert "pbs: job" in place.said() and "    bad node\n" in place.said()


def test_new_snakemake_waits_for_the_jobs_of_a_killed_one(place):
    site = place.path / "environment.sh"
    site.write_text("[[ $PBS_JOBNAME != train_tokenizer* ]] || { touch began; sleep 12; }\n")
    place.pbs.environment |= {"CARAVAN_SITE": str(site)}
    killed = place.start("tokenizers")
    processes.wait_until((place.path / "began").exists, 60, "the job began")
    killed.kill()
    killed.wait()
    assert place.start("--unlock").wait(60) == 0
    place.make("tokenizers")
    assert [job["code"] for job in place.jobs("train_tokenizer")] == [0], place.said()
