"""Smoke test of the benchmark of tokenizers: all give the same ids."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import texts
from tests.helpers.data_fixtures import texts as made_up

HOME = Path(__file__).resolve().parents[2]


@pytest.fixture
def work(tmp_path):
    """A work directory that already holds the texts."""
    directory = tmp_path / "a work" / "texts"
    directory.mkdir(parents=True)
    documents = [[text for text in made_up(name, 40) if text.strip()] for name in ("a", "b")]
    for number, chosen in enumerate(documents):
        lines = [json.dumps({"text": text}) + "\n" for text in chosen]
        (directory / f"{number:02d}.jsonl").write_text("".join(lines))
    content = {"wanted": {"megabytes": 1.0, "files": 2}, "documents": sum(map(len, documents))}
    (directory / "texts.json").write_text(json.dumps(content))
    return directory.parent


@pytest.mark.long
def test_all_tokenizers_are_measured_and_give_the_same_ids(work, tmp_path):
    options = ["--megabytes", "1", "--vocab-size", "300", "--repeats", "1", "--processes", "2", "--work", str(work)]
    command = [sys.executable, "-m", "benchmarks.tokenize", *options, "--output", str(tmp_path / "out.json")]
    printed = subprocess.run(command, cwd=HOME, check=True, capture_output=True, text=True).stdout
    found = json.loads((tmp_path / "out.json").read_text())
    assert {"megatron", "datasets"} <= set(found["ratios"]) | set(found["peers"]["left_out"])
    assert "megatron" in found["ratios"]
    assert set(found["encoders"]) == {"gigatoken", "sentencepiece", "tokenizers"}
    assert all(turn["cpu_seconds"] > 0 and turn["peak_mb"] > 0 for turn in found["turns"])
    for peer in found["peers"]["left_out"]:
        assert f"{peer} is not installed: skipped" in printed


def test_texts_are_taken_in_turns_once_and_without_control_tokens(tmp_path, monkeypatch):
    packages, share = tmp_path / "packages", tmp_path / "share"
    (share / "doc").mkdir(parents=True)
    packages.mkdir()
    for number in range(5):
        (packages / f"{number}.py").write_text(f"# {number % 4}\n" * 100)  # the last equals the first
        (share / "doc" / f"{number}.txt").write_text(f"prose {number}\n" * 100)
    (packages / "control.py").write_text("x = '</s>'\n" * 100)
    (packages / "binary.py").write_bytes(b"\xff" * 1000)
    monkeypatch.setattr(texts, "SHARE", share)
    monkeypatch.setattr(texts, "_packages", lambda: [packages])
    paths, content = texts.build(tmp_path / "made", 1, 2)
    lines = [json.loads(line)["text"] for path in paths for line in path.read_text().splitlines()]
    assert content["documents"] == len(lines) == len(set(lines)) == 9
    assert content["kinds"] == {"code": 4 * 400, "prose": 5 * 800}
    assert content["text_bytes"] == sum(map(len, lines))
    assert not any("</s>" in line for line in lines)
    assert texts.build(tmp_path / "made", 1, 2) == (paths, content)
