"""The whole workflow on a real Slurm, from texts to the report."""

import csv
import time

import pytest

from tests.docs.tutorials import clone, environment, follow

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]


def test_profile_takes_texts_to_a_report_on_a_cluster(place, cluster):
    begun = time.monotonic()
    place.fill().make("all", "--report", "results/report.html", "--report-after-run")
    seconds = time.monotonic() - begun
    print(f"texts to report on Slurm: {seconds:.0f} s, {len(cluster.submissions())} jobs")

    with open(place.path / "results/scores.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["run"].startswith("trivial ")]
    assert {row["step"] for row in rows} == {"6", "12"}
    assert {row["task"] for row in rows} == {"bits_per_byte_a", "bits_per_byte_b", "next_line"}
    assert (place.path / "results/report.html").stat().st_size > 10_000
    submitted = {
        rule: len(place.submitted(rule)) for rule in ("train_tokenizer", "tokenize", "pretrain", "convert", "evaluate")
    }
    assert submitted == {"train_tokenizer": 1, "tokenize": 4, "pretrain": 2, "convert": 2, "evaluate": 2}
    cluster.wait_until_empty()


def test_two_nodes_make_the_bits_of_one(tokenized, tmp_path):
    one, two = tokenized.copy(tmp_path / "one"), tokenized.copy(tmp_path / "two")
    one.write_profile(nodes=1, ranks=4)
    two.write_profile(nodes=2, ranks=2)
    for place in (one, two):
        place.write_recipe(steps=12, milestones=[12], micro_batch_size=1)
    drivers = [place.start("models") for place in (one, two)]
    assert [driver.end() for driver in drivers] == [0, 0], "\n".join(driver.said() for driver in drivers)
    assert [place.nodes_of_training() for place in (one, two)] == [1, 2]
    assert len(one.weights()["00000012.json"]) == 4
    assert one.weights() == two.weights()


def test_tutorial_is_followed(cluster, tmp_path):
    directory, variables = clone(tmp_path), environment(cluster.environment)
    follow("your_text", directory, variables, until="Train and score")
    follow("cluster", directory, variables)
    cluster.wait_until_empty()
