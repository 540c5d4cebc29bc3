"""Evaluation data is downloaded into the cache, and missing data is named."""

import json
import os
import subprocess
import sys

import pytest

TASK = """
task: {name}
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{question}}}}"
doc_to_choice: ["yes", "no"]
doc_to_target: answer
metric_list: [{{metric: acc}}]
"""


@pytest.fixture
def prefetch(tmp_path):
    """A function that runs the tool with its own cache; returns (exit code, output, last line of errors)."""
    rows = [json.dumps({"question": f"Is {number} even?", "answer": number % 2}) for number in range(7)]
    (tmp_path / "data.json").write_text("\n".join(rows))
    (tmp_path / "tasks").mkdir()
    task = TASK.format(name="evenness", data=tmp_path / "data.json")
    (tmp_path / "tasks" / "evenness.yaml").write_text(task)

    def run(*tasks):
        command = [sys.executable, "-m", "tools.prefetch", "--include-path", tmp_path / "tasks", "--tasks", *tasks]
        environment = os.environ | {"HF_HOME": str(tmp_path / "cache")}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=240)
        return done.returncode, done.stdout, (done.stderr.splitlines() or [""])[-1]

    return run


def test_data_of_a_task_is_in_the_cache_afterwards(prefetch, tmp_path):
    code, said, error = prefetch("bits_per_byte", "evenness")
    assert (code, said) == (0, f"evenness: 7 documents\nstored in {tmp_path / 'cache/datasets'}\n"), error
    assert list((tmp_path / "cache").rglob("*.arrow"))
    code, said, _ = prefetch("bits_per_byte", "next_line")
    assert (code, said) == (0, "nothing to download: all tasks are made from the validation split\n")


@pytest.mark.long  # the harness reads all its tasks, as in the test of evaluate
def test_unknown_task_is_named(prefetch):
    code, _, error = prefetch("hellaswagg")
    assert code == 2
    assert "hellaswagg must be one of" in error


def test_missing_data_is_named(prefetch, tmp_path):
    (tmp_path / "data.json").unlink()
    code, _, error = prefetch("evenness")
    assert code == 2
    assert error.startswith("prefetch: --tasks: evenness cannot be loaded: FileNotFoundError")
