"""Inputs of `summarize`: manifests of a run of two milestones, converted and scored."""

import json

import pytest

from stages import summarize
from stages.lib import manifest
from stages.lib.render import chart
from tests.helpers.export_fixtures import argv_of

MODEL = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
PRETRAIN = {"model": MODEL, "weights": {"code": 1.0}, "seq_len": 64, "global_batch_size": 4, "optimizer": {"peak": 2}}
SUITE = {"tasks": ["bits_per_byte", "next_line"], "num_examples": 64}
EXPECT = {
    "runs": {
        "base": {
            # identities, as the workflow gives them: no defaults
            "pretrain": {"model": MODEL, "weights": {"code": 1}, "seq_len": 64, "global_batch_size": 4},
            "convert": {},
            "milestones": ["00000100", "00000300"],
            "steps": 300,
            "suites": {"validation": SUITE},
        }
    },
    "code": {"pretrain": "p1", "convert": "c1", "evaluate": "e1"},
}


@pytest.fixture
def results(tmp_path):
    """A run of two milestones, converted and scored."""
    root = tmp_path / "results"
    run = root / "runs" / "base"
    curve = [
        {"step": step, "tokens": step * 256, "loss": 8 - step / 100, "tokens_per_second": 1000.0}
        for step in range(10, 310, 10)
    ]
    curve.append({"step": 300, "tokens": 76800, "validation": {"code": {"loss": 5.2, "loss_bits_per_byte": 2.5}}})
    train = run / "train" / "0123456789abcdef"
    train.mkdir(parents=True)
    (train / "metrics.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in curve))
    for step, bits, accuracy in ((100, 3.0, 0.35), (300, 2.5, 0.45)):
        write_milestone(run, step, bits, accuracy)
    return root


@pytest.fixture
def lines(monkeypatch):
    """The lines of all figures after `summarize.main`: {label: [(tokens, value), ...]}."""
    drawn = {}

    def draw(path, drawn_chart):
        drawn.update({line.label: [point[:2] for point in line.points] for line in drawn_chart.lines})
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"")

    monkeypatch.setattr(chart, "draw", draw)
    return drawn


def write_milestone(run, step, bits, accuracy):
    recipe = {key: value for key, value in PRETRAIN.items() if key != "optimizer"}
    models = run / "models" / f"{step:08d}.json"
    identity = {"recipe": recipe, "step": step, "tokens": step * 256, "outputs": {}}
    manifest.write(
        models,
        "pretrain",
        identity,
        {"run_directory": "../train/0123456789abcdef", "horizon": {"steps": 300}, "code": "p1"},
    )
    export = run / "export" / f"{step:08d}" / "manifest.json"
    identity = {"recipe": {}, "model": manifest.read(models).digest, "step": step, "tokens": step * 256, "outputs": {}}
    manifest.write(export, "convert", identity, {"parameters": 4_200_000, "vocab_size": 4096, "code": "c1"})
    scores = {
        "next_line": {"acc_mutual_info": {"value": accuracy, "stderr": 0.03, "n": 64}},
        "bits_per_byte_code": {"bits_per_byte": {"value": bits, "stderr": None}},
    }
    identity = {"recipe": SUITE, "suite": "validation", "export": manifest.read(export).digest, "step": step}
    identity |= {"tokens": step * 256, "results": scores, "outputs": {}}
    manifest.write(run / "eval" / f"{step:08d}" / "validation.json", "evaluate", identity, {"code": "e1"})


def options_of(root, expect=EXPECT):
    run = root / "runs" / "base"
    steps = [f"{step:08d}" for step in (100, 300)]
    argv = ["--models", *(run / "models" / f"{step}.json" for step in steps)]
    argv += ["--exports", *(run / "export" / step / "manifest.json" for step in steps)]
    argv += ["--evaluations", *(run / "eval" / step / "validation.json" for step in steps)]
    more = {"--scores": root / "scores.csv", "--figures": root / "figures", "--output": root / "summary.json"}
    return [str(word) for word in argv] + argv_of(more, **{"--expect": json.dumps(expect)})


def refused(argv, capsys, *words):
    """Check that the stage exits with 2 and its last line has all the words."""
    assert summarize.main(argv) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    for word in words:
        assert word in line
