"""The whole workflow with its real stages, on a text and a model that are small enough for every test run."""

import csv
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.helpers.browser import browser, needs_chromium
from tools import push

pytestmark = [pytest.mark.landing, pytest.mark.long]

HOME = Path(__file__).resolve().parents[1]
CONFIG = """
sources:
  a: {kind: jsonl, paths: [texts/a.jsonl], validation: 0.2, filters: {min_words: 3}}
  b: {kind: text, paths: [texts/b/*.txt], validation: 0.3}
tokenizers:
  main: {vocab_size: 400, sample: {a: 1, b: 1}}
corpora:
  main: {tokenizer: main, sources: [a, b], tokenize: {parts: 2, duplicates: drop}}
suites:
  validation: {tasks: [bits_per_byte, next_line], bytes_per_source: 4000, num_examples: 12}
runs:
  tiny:
    corpus: main
    model:
      {architecture: mistral, sliding_window: 24, num_hidden_layers: 2, hidden_size: 64, num_attention_heads: 4,
       num_key_value_heads: 2, intermediate_size: 96, tie_word_embeddings: true, max_position_embeddings: 64}
    pretrain:
      steps: 12
      milestones: [6, 12]
      weights: {a: 2, b: 1}
      data_stages: [{step: 6, weights: {a: 1, b: 1}}]
      packing: best_fit
      document_mask: true
      seq_len: 64
      global_batch_size: 4
      micro_batch_size: 2
      dtype: float32
      optimizer: {learning_rate: 5e-3}
      schedule: {warmup_steps: 2}
      validation: {tokens: 2000}
    suites: [validation]
"""
SENTENCES = (
    "The caravan left the {} at dawn and followed the dry river to the {}.",
    "Nobody had seen the {} since the {} was sold to the merchant.",
    "A {} costs more than a {} when the wells are empty.",
    "They counted every {} twice and wrote the {} down in the ledger.",
)
WORDS = [
    *("camel", "tent", "well", "rope", "lamp", "knife", "saddle", "bell", "coin", "map"),
    *("drum", "jar", "rug", "mule", "gate", "wall", "guide", "moon", "star", "song"),
]


def text(number):
    """Return forty different lines."""
    lines = []
    for line in range(40):
        first, second = WORDS[(number * 7 + line) % 20], WORDS[(number * 3 + line * 5 + 1) % 20]
        lines.append(SENTENCES[(number + line * 3) % 4].format(first, second) + f" {number * 41 + line}")
    return "\n".join(lines) + "\n"


def write_texts(directory):
    """Write the texts that CONFIG names."""
    (directory / "texts/b").mkdir(parents=True)
    rows = [json.dumps({"text": text(number)}) + "\n" for number in range(40)]
    again = [*rows[:5], json.dumps({"text": "too short"}) + "\n", json.dumps({"text": text(100)}) + "\n"]
    (directory / "texts/a.jsonl").write_text("".join([*rows, *again]))
    for number in range(20):
        (directory / f"texts/b/{number}.txt").write_text(text(100 + number))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A working directory with a space in its name, and everything that the workflow makes of CONFIG in it."""
    directory = tmp_path_factory.mktemp("a place")
    write_texts(directory)
    (directory / "my.yaml").write_text(CONFIG)
    done = snakemake(directory, "all", "--report", "results/report.html", "--report-after-run")
    assert done.returncode == 0, done.stdout + done.stderr
    return directory


def snakemake(directory, *arguments):
    """Run the workflow from another directory, without an active virtual environment."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", HOME / "workflow/Snakefile", "--directory", directory]
    command += ["--profile", HOME / "profiles/local", *arguments, "--configfile", directory / "my.yaml"]
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    environment["PATH"] = "/usr/local/bin:/usr/bin:/bin"
    return subprocess.run(command, check=False, cwd="/", env=environment, capture_output=True, text=True, timeout=900)


def test_scores_of_every_milestone_are_made(place):
    with open(place / "results/scores.csv", newline="") as file:
        rows = [row for row in csv.DictReader(file) if not row["run"].startswith("trivial ")]
    assert {row["step"] for row in rows} == {"6", "12"}
    assert {row["task"] for row in rows} == {"bits_per_byte_a", "bits_per_byte_b", "next_line"}
    assert all(0 < float(row["value"]) < 500 for row in rows if row["task"] != "next_line")
    for step in ("00000006", "00000012"):
        parity = json.loads((place / f"results/runs/tiny/export/{step}/parity.json").read_text())
        assert parity["passed"]


def test_every_export_has_a_card_and_can_be_pushed(place, capsys):
    for step in ("00000006", "00000012"):
        export = place / f"results/runs/tiny/export/{step}"
        assert push.main([str(export), "me/tiny", "--dry-run"]) == 0
        assert "README.md" in capsys.readouterr().out
        card = (export / "README.md").read_text()
        assert "1 filters.min_words" in card and "| `next_line` | `acc_mutual_info` |" in card


def test_loss_is_finite_and_on_two_ranks(place):
    (directory,) = (place / "results/runs/tiny/train").iterdir()
    entries = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if "loss" in entry] == list(range(1, 13))
    assert len(list((directory / "checkpoints/00000012").glob("*.distcp"))) == 2


def test_dropped_documents_are_counted(place):
    record = json.loads((place / "results/tokens/main/manifest.json").read_text())["record"]
    dropped = {source: counts.get("duplicate", 0) for source, counts in record["dropped"].items()}
    assert sum(dropped.values()) == 6  # five within a; and one of a and b, of which a validation one stays
    assert record["dropped"]["a"]["filters.min_words"] == 1


def test_the_ledger_is_proven(place):
    (directory,) = (place / "results/runs/tiny/train").iterdir()
    command = [sys.executable, "-m", "tools.replay_ledger", "--run", directory]
    command += ["--corpus", place / "results/tokens/main/manifest.json"]
    shown = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == "the ledger agrees with corpus and recipe: no sample lost, none twice"


def test_nothing_is_left_to_do(place):
    done = snakemake(place, "all", "--dry-run")
    assert "Nothing to be done" in done.stdout + done.stderr


def test_status_and_summary_name_the_run(place):
    assert "next_line" in (place / "results/summary.txt").read_text()
    command = [sys.executable, "-m", "tools.status", "--results", place / "results"]
    shown = subprocess.run(command, cwd=HOME, capture_output=True, text=True, check=True).stdout
    assert "tiny" in shown
    assert "12" in shown


def test_deleted_run_directory_is_refused_with_the_remedy(place, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(place, copy)
    shutil.rmtree(copy / "results/runs/tiny/train")
    done = snakemake(copy, "scores", "-R", "convert")
    assert done.returncode == 1
    assert "is missing, but" in done.stdout + done.stderr


@needs_chromium
def test_report_opens_with_the_answer_and_its_categories_have_their_pages(place, tmp_path):
    with browser(tmp_path) as page:
        page.open(place / "results/report.html")
        page.until("document.querySelector('iframe.answer')?.clientWidth > 800")
        wait_for(page, "the best run of a column is bold", ".plot canvas")
        page.until("document.querySelector('#rulegraph canvas')?.clientHeight > 300")
        for category, label, words, drawn in (
            ("Data", "sources, data mix", "filters.min_words", ".bars"),
            ("Training", "curves, health", "Learning rate", ".plot canvas"),
            ("Scores", "all tasks of all runs", "scores.csv:", ".plot canvas"),
            ("Provenance", "digests, code, time", "From raw files to scores", ".graph"),
        ):
            page.evaluate("app.setView({navbarMode: 'menu'})")  # home: Snakemake shows a category from there alone
            page.until("document.querySelector('nav td') === null")
            page.evaluate(f"app.showCategory({category!r})")
            page.until(f"document.querySelector('nav td')?.textContent === {label!r}")
            page.evaluate("document.querySelector('nav td a').click()")
            wait_for(page, words, drawn)
        assert (page.errors, page.requests) == ([], [])


@needs_chromium
def test_card_opens_in_a_browser(place, tmp_path):
    with browser(tmp_path) as page:
        page.open(place / "results/card.html", width=390, dark=True)
        assert "tiny" in page.evaluate("document.body.textContent")
        assert page.evaluate("document.querySelectorAll('.plot canvas').length") == 6  # no MFU on a CPU
        assert (page.errors, page.requests) == ([], [])


def wait_for(page, words, drawn):
    """Wait until a frame shows some words, and what a selector finds."""
    end = time.monotonic() + 30
    condition = f"document.body.textContent.includes({words!r}) && document.querySelector({drawn!r}) !== null"
    while not page.in_any_frame(condition):
        assert time.monotonic() < end, words
