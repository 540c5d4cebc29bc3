"""compare: what it says beside the statistics, its page and files, and what it refuses."""

import csv
import gzip
import json
import re

import pytest

from stages.lib import manifest
from tests.tools.test_compare import BASE, RECIPE, WIDE, accuracy, differences, refused, run_compare, samples, write_run


def test_differences_of_recipe_and_data_are_shown_and_equal_keys_are_not(tmp_path, capsys):
    for corpus, documents in (("main", 10), ("more", 20)):
        shard = {"path": "x", "bytes": 1, "sha256": corpus}
        sources = {"code": {"train": {"documents": documents, "tokens": documents * 100, "shards": [shard]}}}
        (tmp_path / "tokens" / corpus).mkdir(parents=True)
        manifest.write(tmp_path / "tokens" / corpus / "manifest.json", "index", {"recipe": {}, "sources": sources}, {})
    digests = [manifest.read(tmp_path / "tokens" / corpus / "manifest.json").digest for corpus in ("main", "more")]
    write_run(tmp_path, "base", {"arc_easy": accuracy(BASE)}, model={"corpus": digests[0]})
    recipe = RECIPE | {"model": {"hidden_size": 128}, "seq_len": 256}
    write_run(tmp_path, "wide", {"arc_easy": accuracy(BASE)}, recipe=recipe, model={"corpus": digests[1]}, step=400)
    assert run_compare(tmp_path, "base", "wide") == 0
    text = capsys.readouterr().out
    for line in (
        "| training tokens | 76,800 | 102,400 |",
        "| parameters | 4,212,992 | 4,212,992 |",
        f"| corpus | main ({digests[0][:12]}) | more ({digests[1][:12]}) |",
        "| `model.hidden_size` | 64 | 128 |",
        "| `seq_len` | default | 256 |",
    ):
        assert line in text.splitlines()
    assert "| `corpus.code` | 10 documents, 1,000 tokens (" in text
    assert "learning_rate" not in text


def test_settings_that_differ_are_noted(tmp_path, capsys):
    tasks = {"arc_easy": accuracy(BASE)}
    write_run(tmp_path, "base", tasks, evaluation={"task_versions": {"arc_easy": 1.0}})
    other = {"model": {"tokenizer": "e" * 64}, "export": {"seq_len": 256}}
    five = {"tasks": ["arc_easy", "piqa"], "num_fewshot": 5}
    versions = {"task_versions": {"arc_easy": 2.0}, "harness": "0.4.14"}
    write_run(tmp_path, "wide", tasks | {"piqa": accuracy(BASE)}, suite_recipe=five, evaluation=versions, **other)
    write_run(tmp_path, "wide", tasks, suite="more", **other)
    assert run_compare(tmp_path, "base", "wide") == 0
    pair = capsys.readouterr().out.partition("\n## ")[2].partition("\n## ")[0]
    counts, *notes, noise = [line[2:] for line in pair.splitlines() if line.startswith("- ")]
    assert counts == "wide:300 is significantly better in 0 and worse in 0 of 1 tasks."
    assert noise.startswith("The noise of a run is unknown, since no other run differs from these by its seed")
    assert notes == [
        "suites of wide:300 alone: more",
        "base:300 and wide:300 have different tokenizers: max_length tokens of context are other text",
        "suite cheap: dtype is float32 for base:300 and default for wide:300",
        "suite cheap: max_length is 128 for base:300 and 256 for wide:300",
        "suite cheap: num_fewshot is 0 for base:300 and 5 for wide:300",
        "suite cheap: version of lm_eval is 0.4.13 for base:300 and 0.4.14 for wide:300",
        "suite cheap: tasks of wide:300 alone: piqa",
        "task arc_easy of suite cheap: version 1.0 for base:300 and 2.0 for wide:300",
    ]


def test_curves_of_all_milestones_are_rows_of_the_csv_and_figures_of_the_page(tmp_path):
    for step, values in ((100, BASE), (300, WIDE)):
        write_run(tmp_path, "base", {"arc_easy": accuracy(values)}, step=step)
    write_run(tmp_path, "wide", {"arc_easy": accuracy(WIDE)})
    assert run_compare(tmp_path, "base", "wide", "--csv", tmp_path / "x.csv", "--html", tmp_path / "x.html") == 0
    with open(tmp_path / "x.csv", encoding="utf-8") as file:
        scores = [row for row in csv.DictReader(file) if row["kind"] == "score"]
    shown = [(row["run"], row["step"], row["tokens"], float(row["value"]), row["n"]) for row in scores]
    assert shown == [
        ("base", "100", "25600", sum(BASE) / 40, "40"),
        ("base", "300", "76800", sum(WIDE) / 40, "40"),
        ("wide", "300", "76800", sum(WIDE) / 40, "40"),
    ]
    page = (tmp_path / "x.html").read_text()
    charts = json.loads(re.search(r'id="chart-data">(.*?)</script>', page, re.DOTALL)[1])["charts"]
    assert [(line["label"], line["x"]) for line in charts[0]["lines"]] == [("base", [25600, 76800]), ("wide", [76800])]
    assert "cheap/arc_easy" in page


def test_page_is_self_contained_and_texts_are_escaped(tmp_path, capsys):
    evil = "<script>alert(1)</script>|`x`"
    recipe = RECIPE | {"weights": {evil: 1.0}}
    for step in (100, 300):
        write_run(tmp_path, "base", {"arc_easy": accuracy(BASE)}, step=step)
    write_run(tmp_path, "a<b>$c$", {"arc_easy": accuracy(WIDE)}, recipe=recipe)
    assert run_compare(tmp_path, "base", "a<b>$c$", "--html", tmp_path / "x.html") == 0
    page = (tmp_path / "x.html").read_text()
    assert evil not in page
    assert "a<b>" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:,)', page)
    named = re.findall(r'\bid="([^"]+)"', page)
    assert len(named) == len(set(named))
    table_lines = [line for line in capsys.readouterr().out.splitlines() if "script" in line]
    assert table_lines
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in table_lines)


def test_significant_differences_are_seen_without_color(tmp_path, capsys):
    tasks = [
        {"better": accuracy(a), "worse": accuracy(b), "same": accuracy(BASE)}
        for a, b in (([0] * 40, [1] * 40), ([1] * 40, [0] * 40))
    ]
    write_run(tmp_path, "base", tasks[0])
    write_run(tmp_path, "wide", tasks[1])
    assert run_compare(tmp_path, "base", "wide", "--html", tmp_path / "x.html") == 0
    text, page = capsys.readouterr().out, (tmp_path / "x.html").read_text()
    assert "wide:300 is significantly better in 1 and worse in 1 of 3 tasks." in text
    assert text.count("**\u25b2 better**") == text.count("**\u25bc worse**") == text.count("| not significant ") == 1
    assert page.count("\u25b2 better") == page.count("\u25bc worse") == 1


def test_tuned_run_continues_from_the_tokens_of_its_initial_model(tmp_path, capsys):
    write_run(tmp_path, "base", {"arc_easy": accuracy(BASE)})
    write_run(tmp_path, "tuned", {"arc_easy": accuracy(WIDE)}, step=40)
    path = tmp_path / "runs/tuned/models/00000040.json"
    made = manifest.read(path)
    initial = manifest.checkpoint_digest(manifest.read(tmp_path / "runs/base/models/00000300.json"))
    manifest.write(path, "finetune", made.identity | {"initial": initial}, made.record)
    export = tmp_path / "runs/tuned/export/00000040/manifest.json"
    scored = tmp_path / "runs/tuned/eval/00000040/cheap.json"
    for after, key, before in ((export, "model", path), (scored, "export", export)):
        made = manifest.read(after)
        manifest.write(after, made.stage, made.identity | {key: manifest.read(before).digest}, made.record)
    row = differences(tmp_path, "base", "tuned")["tuned", "arc_easy"]
    assert row["tokens"] == str(300 * 256 + 40 * 256)
    assert "| initial model | - | base:300 |" in capsys.readouterr().out


def test_newest_scored_milestone_is_compared_a_step_can_be_named_and_markdown_goes_to_a_file(tmp_path, capsys):
    for step in (100, 300):
        write_run(tmp_path, "base", {"arc_easy": accuracy(BASE)}, step=step)
    assert run_compare(tmp_path, "base:00000100", "base") == 0
    printed = capsys.readouterr().out
    assert "# Comparison of base:300 with base:100\n" in printed
    assert run_compare(tmp_path, "base:00000100", "base", "--markdown", tmp_path / "x.md") == 0
    assert capsys.readouterr().out == ""
    assert (tmp_path / "x.md").read_text() == printed


@pytest.fixture
def runs(tmp_path):
    """Results with two runs of equal scores: the log of the second."""
    write_run(tmp_path, "base", {"arc_easy": accuracy(BASE)})
    path = write_run(tmp_path, "wide", {"arc_easy": accuracy(BASE)})
    return path.parent / "cheap/samples/arc_easy.jsonl.gz"


UNKNOWN = [
    (["base"], "two or more models must be given as RUN or RUN:STEP, the reference first, got base"),
    (["base", "base:300"], "each model must be given once, got base:300 2 times"),
    (["base", "deep"], "runs must have a run deep; it has base, wide"),
    (["base", "deep:7"], "runs must have a run deep; it has base, wide"),
    (["base", "wide:7"], "runs/wide must have scores of step 7; it has scores of the steps: 300"),
    (["base", "wide:last"], "wide:last must have a number of steps after the colon, got 'last'"),
]


def test_unknown_models_are_refused_with_the_known_ones(runs, tmp_path, capsys):
    for words, message in UNKNOWN:
        assert refused(tmp_path, capsys, *words).endswith(message)


GOOD = json.dumps(samples("acc", [1])[0]).encode() + b"\n"
MANY = "".join(json.dumps(line) + "\n" for line in samples("acc", BASE)).encode()
LOGS = [
    (gzip.compress(GOOD + b'{"doc_id": 1, \n', mtime=0), r"arc_easy.jsonl.gz line 2 is not valid JSON"),
    (gzip.compress(b'{"doc_id": 0}\n', mtime=0), r"line 1 has no doc_hash \(str\)"),
    (gzip.compress(GOOD + GOOD, mtime=0), "line 2 repeats document 0"),
    (gzip.compress(MANY, mtime=0)[:-20], r"arc_easy.jsonl.gz line \d+ cannot be decompressed"),
]


@pytest.mark.parametrize(("content", "sentence"), LOGS)
def test_damaged_log_is_refused_by_file_and_line(runs, tmp_path, capsys, content, sentence):
    runs.write_bytes(content)
    scores = runs.parents[2] / "cheap.json"
    made = manifest.read(scores)
    outputs = {"cheap/samples/arc_easy.jsonl.gz": manifest.describe(runs)}
    manifest.write(scores, made.stage, made.identity | {"outputs": outputs}, made.record)
    assert re.search(sentence, refused(tmp_path, capsys, "base", "wide", "--csv", tmp_path / "x.csv"))
    assert not (tmp_path / "x.csv").exists()


def test_log_that_changed_since_its_manifest_is_refused(runs, tmp_path, capsys):
    data = bytearray(runs.read_bytes())
    data[30] ^= 1
    runs.write_bytes(data)
    sentence = f"{runs} changed since {runs.parents[2] / 'cheap.json'} was written: its sha256 differs"
    assert sentence in refused(tmp_path, capsys, "base", "wide")


def test_output_that_cannot_be_written_is_refused_before_anything_is_written(runs, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    message = refused(tmp_path, capsys, "base", "wide", "--csv", tmp_path / "x.csv", "--html", tmp_path / "file/x.html")
    assert "--html" in message and "Not a directory" in message
    same = refused(tmp_path, capsys, "base", "wide", "--csv", tmp_path / "x", "--html", tmp_path / "x")
    assert same.endswith("--csv, --html must name different files")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "runs"]
