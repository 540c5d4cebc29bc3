"""Fine-tuning by the real workflow and stages, on the text and model of the end-to-end test."""

import csv
import json

import pytest
import yaml

from tests.test_end_to_end import CONFIG, snakemake, write_texts

SOUNDS = {"camel": "grunts at the moon", "mule": "brays", "goat": "bleats and runs away", "horse": "neighs at dawn"}


@pytest.mark.long
def test_summary_shows_the_scores_before_and_after_finetuning(tmp_path):
    write_texts(tmp_path)
    config = yaml.safe_load(CONFIG)
    pairs = [(f"The {animal} no. {number} ", sound) for number in range(40) for animal, sound in SOUNDS.items()]
    lines = [json.dumps({"prompt": prompt, "completion": completion}) + "\n" for prompt, completion in pairs]
    (tmp_path / "texts/pairs.jsonl").write_text("".join(lines))
    config["sources"]["sounds"] = {"kind": "prompt_completion", "paths": ["texts/pairs.jsonl"], "validation": 0.2}
    config["suites"]["sounds"] = {"tasks": ["completion_bits"], "prompt_completion": "sounds"}
    same = {"seq_len": 64, "global_batch_size": 4, "dtype": "float32"}
    tuning = {"steps": 30, "optimizer": {"learning_rate": 5e-3}, "schedule": {"warmup_steps": 2}, **same}
    initial = {"run": "tiny", "step": 12}
    config["runs"]["tuned"] = {
        "initial": initial,
        "finetune": tuning | {"weights": {"sounds": 1}},
        "suites": ["sounds"],
    }
    config["runs"]["mean"] = {
        "initial": initial,
        "average_weights": {"num_milestones": 2},
        "suites": config["runs"]["tiny"]["suites"],
    }
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config | {"tune": True}))
    done = snakemake(tmp_path, "all")
    assert done.returncode == 0, done.stdout + done.stderr
    with open(tmp_path / "results/scores.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["step"] and row["task"] == "completion_bits"]
    before, after = ((float(row["value"]), float(row["stderr"])) for row in rows)
    assert [(row["run"], row["step"]) for row in rows] == [("tiny", "12"), ("tuned", "30")]
    assert before[0] - after[0] > 3 * (before[1] + after[1])
    text = (tmp_path / "results/summary.txt").read_text()
    assert "the mean of the weights at the steps 6, 12" in text
    assert "completion_bits: tuned is better than tiny by " in text
    assert "tuned from tiny at step 12" in text
    assert "Nothing to be done" in "".join(snakemake(tmp_path, "tuned", "--dry-run").stdout)
