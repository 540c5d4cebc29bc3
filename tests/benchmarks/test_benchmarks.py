"""Smoke tests of the benchmarks: each runs, and its file has every turn and the ratios."""

import contextlib
import json
import statistics
import subprocess
import sys

import numpy as np
import pytest
import yaml

from benchmarks import evaluate, harness, loader, texts
from benchmarks.dummy import DOCUMENT_END, DummySamples
from stages.lib.tokens.loader import Prefetch
from tests.helpers import evaluations
from tests.helpers.data_fixtures import texts as made_up
from tests.helpers.training import HOME, OPERATION, RECIPE, environment


@pytest.fixture
def run(tmp_path):
    """A function that runs a benchmark; it returns its stdout and what it wrote."""

    def call(name, *words):
        output = tmp_path / "out.json"
        command = [sys.executable, "-m", f"benchmarks.{name}", *map(str, words), "--output", str(output)]
        done = subprocess.run(command, cwd=HOME, env=environment(), check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return done.stdout, json.loads(output.read_text())

    return call


def test_a_call_that_was_cut_off_repeats_no_run_that_ended(tmp_path, capsys):
    output, begun = tmp_path / "results/out.json", []

    def train(seed):
        begun.append(seed)
        if begun == [0, 1]:
            raise KeyboardInterrupt
        return {"loss": seed / 2}

    def call():
        ended = harness.EndedRuns(output)
        ended.write("name", (), {"runs": [ended.figures_of(["tiny", seed], train, seed) for seed in range(3)]})

    with pytest.raises(KeyboardInterrupt):
        call()
    assert not output.exists()
    call()
    assert begun == [0, 1, 1, 2]
    assert json.loads(output.read_text())["runs"] == [{"loss": 0}, {"loss": 0.5}, {"loss": 1}]
    assert list(output.parent.iterdir()) == [output] and "written to" in capsys.readouterr().out


@pytest.mark.long
def test_the_workflow(run):
    printed, found = run("workflow", "--files", 20, "--runs", 4, "--jobs", 40, "--no-demo", "--repeats", 1)
    assert set(found["plans"]) == {"default", "20 files", "4 runs", "40 jobs"}
    assert all(times["cpu_seconds"] > 0 for times in found["plans"].values())
    assert "plan of 4 runs: " in printed


@pytest.mark.long
def test_the_start_of_a_training(run):
    medians = run("start", "--megabytes", 8, "--repeats", 1)[1]["medians"]
    assert set(medians) == {"new run, 1 process", "new run, 2 processes", "resume", "read", "bytes"}
    assert 0 < medians["read"] < medians["resume"]


@pytest.mark.long
def test_writing_parity_and_memory_of_a_conversion(run, tmp_path):
    options = ["--shape", "tiny", "--repeats", 1, "--work", tmp_path / "work"]
    printed, found = run("convert", *options)
    assert found["command"] == "python -m benchmarks.convert --shape tiny --repeats 1"
    assert set(found["turns"]) == {"4", "2"}
    assert all(turn["writing"] > 0 and turn["parity"] > 0 and turn["copy"] > 0 for turn in found["turns"]["4"])
    assert 100 < found["peak_mb"]["4"] < 1500
    assert "peak_of_depths: " in printed


@pytest.mark.long  # it makes the corpus of the embedded default
def test_a_ladder_sets_the_prediction_beside_what_came_out(run):
    options = ["--seeds", 5, "--sizes", 18e3, 26e3, 36e3, "--ratios", 0.3, 0.6, 1, "--target-ratio", 0.1]
    (found,) = run("ladder", *options)[1]["runs"]
    row = found["rows"]["loss"]
    assert len(found["points"]) == 9
    assert row["low"] < row["value"] < row["high"]
    assert row["error"] == pytest.approx(row["value"] / row["measured"] - 1, abs=1e-5)
    assert row["inside"] == (row["low"] <= row["measured"] <= row["high"])


@pytest.mark.parametrize(
    "readers",
    [["caravan chunk", "memcpy", "file copy"], pytest.param(list(loader.READERS), marks=pytest.mark.long)],
    ids=["few", "all"],  # the others import their libraries
)
def test_the_loader_beside_its_peers(run, readers):
    printed, found = run("loader", "--tokens", 60000, "--turn", 4000, "--repeats", 2, "--readers", *readers)
    assert set(found["missing"]) <= {"datasets", "litdata"}
    for length in loader.LENGTHS:
        figures = found["figures"][str(length)]
        assert set(figures) == set(readers) - set(found["missing"])
        shares = [turn["caravan chunk"] / turn["memcpy"] for turn in found["turns"] if turn["length"] == length]
        assert figures["caravan chunk"]["of_memcpy"] == pytest.approx(statistics.median(shares), rel=1e-5)
    assert f"L={loader.LENGTHS[0]:<5} caravan chunk" in printed


@pytest.mark.long  # each training imports torch
def test_the_memory_of_lora_and_of_a_full_training(run):
    found = run("lora", "--shape", "tiny")[1]
    full, lora = (found["runs"][kind] for kind in ("full", "lora"))
    assert full["parameters"] == full["trained_parameters"] < lora["parameters"]
    assert lora["trained_parameters"] == lora["parameters"] - full["parameters"]
    assert found["ratio"] == pytest.approx(lora["peak_mb"] / full["peak_mb"], rel=1e-5)


@pytest.fixture
def tiny(corpus, tmp_path):
    """The options of a benchmark that trains the run of a config, for a tiny model and one seed."""
    config = tmp_path / "config.yaml"
    pretrain = {key: value for key, value in RECIPE.items() if key != "model"} | OPERATION | {"milestones": [30]}
    config.write_text(yaml.safe_dump({"runs": {"tiny": {"model": RECIPE["model"], "pretrain": pretrain}}}))
    return ["--corpus", corpus, "--config", config, "--run", "tiny", "--seeds", 5]


@pytest.mark.long  # each training imports torch
def test_optimizers_are_compared_at_their_best_learning_rate(run, tiny):
    found = run("optimizers", *tiny, "--steps", 3, "--learning-rates", 1e-6, 1e-2)[1]
    runs = [run for run in found["runs"] if run["steps"] == 3]
    losses = {(run["optimizer"], run["learning_rate"]): run["loss_bits_per_byte"] for run in runs}
    assert len({losses[optimizer, 1e-2] for optimizer in found["equal_steps"]}) == 3
    for optimizer, best in found["equal_steps"].items():
        assert best["learning_rate"] == 1e-2
        assert best["loss_bits_per_byte"] == losses[optimizer, 1e-2] < losses[optimizer, 1e-6]
    most = max(one["cpu_seconds"] for one in found["equal_steps"].values())
    for optimizer, one in found["equal_cpu_seconds"].items():
        assert one["steps"] == max(3, round(3 * most / found["equal_steps"][optimizer]["cpu_seconds"]))


@pytest.mark.long  # two ranks, and torch's profiler
def test_planned_memory_is_within_a_tenth_of_the_measured(run):
    case = run("plan", "--cases", "tiny")[1]["cases"]["tiny"]
    assert sum(case["parts"].values()) == case["planned"]
    assert case["planned"] / case["measured"] == pytest.approx(1, abs=0.1)


@pytest.mark.long  # each peer imports its own libraries
def test_the_training_step_beside_its_peers(run):
    found = run("train_cpu", "--shape", "tiny", "--repeats", 2, "--threads", 1)[1]
    pairs = [turn["transformers"]["seconds"] / turn["caravan"]["seconds"] for turn in found["turns"]]
    assert found["ratios"]["transformers"]["tokens_per_second"] == pytest.approx(sum(pairs) / 2, rel=1e-5)
    memory = [found["sizes"][peer]["peak_mb"] for peer in ("caravan", "transformers")]
    assert min(memory) > 0
    assert found["ratios"]["transformers"]["peak_mb"] == pytest.approx(memory[0] / memory[1], rel=1e-5)
    assert set(found["versions"]) >= {"python", "torch", "transformers"}
    assert found["shape"]["vocab_size"] == 300 and found["hardware"]["cores"] >= 1


def test_training_on_a_gpu_runs_without_one(run):
    options = ["--steps", 2, "--activation-checkpointing", "full", "--state-dtype", "bfloat16"]
    printed, found = run("train_gpu", "tiny", *options)
    assert len(found["steps"]) == 2
    assert 5 < found["steps"][0]["loss"] < 7
    assert f"{found['tokens_per_second']:,.0f} tokens/s, MFU {found['mfu']}" in printed


@pytest.mark.long
def test_the_search_for_items_finds_all_that_are_planted(run):
    found = run("contamination", "--megabytes", 0.5, "--items", 40)[1]
    assert found["planted_items_found"]["caravan"] == found["items_planted"] == 20
    assert found["other_items_found"]["caravan"] == 0
    assert found["tokens_per_cpu_second"]["caravan"] > found["tokens_per_cpu_second"]["janitor"] > 0


def test_saves_beside_each_other(run):
    found = run("save", "--megabytes", 4, "--repeats", 2)[1]
    assert 3e6 < found["state_bytes"] < 5e6
    assert found["ratio"] > 0
    assert [turn.keys() for turn in found["turns"]] == [{"synchronous", "asynchronous"}] * 2


def test_the_model_that_is_scored_by_default_is_the_last_of_the_demo():
    pretrain = yaml.safe_load((HOME / "config/config.yaml").read_text())["runs"]["base"]["pretrain"]
    assert f"/export/{pretrain['milestones'][-1]:08d}/" in evaluate.EXPORT


@pytest.mark.long
def test_evaluation_beside_the_harness(run, tmp_path):
    options = evaluations.export(tmp_path)
    words = ["--export", options["--export"], "--corpus", options["--corpus"], "--examples", 8, "--repeats", 1]
    found = run("evaluate", *words)[1]
    assert found["ratio"]["cpu_seconds"] > 0
    assert found["turns"][0].keys() == {"caravan", "harness"}


@pytest.mark.long
def test_all_tokenizers_give_the_same_ids(run, tmp_path):
    work = tmp_path / "a work"
    directory = work / "texts"
    directory.mkdir(parents=True)
    documents = [[text for text in made_up(name, 40) if text.strip()] for name in ("a", "b")]
    for number, chosen in enumerate(documents):
        (directory / f"{number:02d}.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in chosen))
    content = {"wanted": {"megabytes": 1.0, "files": 2}, "documents": sum(map(len, documents))}
    (directory / "texts.json").write_text(json.dumps(content | {"text_bytes": 1}))
    options = ["--megabytes", 1, "--vocab-size", 300, "--repeats", 1, "--processes", 2, "--work", work]
    printed, found = run("tokenize", *options)
    assert {"megatron", "datasets"} <= set(found["ratios"]) | set(found["peers"]["left_out"])
    assert "megatron" in found["ratios"]
    assert set(found["encoders"]) == {"gigatoken", "sentencepiece", "tokenizers"}
    (turn,) = found["turns"]
    assert all(turn[way]["cpu_seconds"] > 0 and turn[way]["peak_mb"] > 0 for way in ("caravan", *found["ratios"]))
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


def test_a_dummy_sample_depends_on_its_number_and_the_seed_alone_and_the_target_is_the_next_token():
    samples = DummySamples(10, 1000, 7)
    inputs, targets = samples.batch(np.array([10**12, 3, 4]))
    alone, _ = DummySamples(10, 1000, 7).batch(np.array([3]))
    assert inputs.shape == targets.shape == (3, 1000) and inputs.dtype == targets.dtype == np.int32
    assert (inputs[:, 1:] == targets[:, :-1]).all()
    assert (inputs[1] == alone[0]).all() and (inputs[1] != inputs[2]).any()
    assert (DummySamples(10, 1000, 8).batch(np.array([3]))[0] != alone).any()
    apart, _ = DummySamples(100_000, 10_000, 7, document_length=50).batch(range(2))
    assert 300 < (apart == DOCUMENT_END).sum() < 500
    assert set(inputs.ravel().tolist()) == set(range(10))
    numbers = [np.arange(2), np.arange(2, 4)]
    with contextlib.closing(Prefetch(samples, numbers)) as prefetch:
        assert all((prefetch.next()[0] == samples.batch(batch)[0]).all() for batch in numbers)


@pytest.mark.long  # two trainings, and a corpus of the standard library
def test_fill_in_the_middle(run):
    options = ["--seeds", 0, "--steps", 3, "--windows", 8, "--loader-turns", 3]
    found = run("fill_in_the_middle", *options)[1]
    assert [run["fill_in_the_middle"] for run in found["runs"]] == [False, True]
    paired = found["summary"]["middle after psm, bits per token"]
    assert paired["difference"] == pytest.approx(paired["on"] - paired["off"], abs=1e-5) != 0
    assert all(0 < of["on"] < of["off"] for of in found["loader"].values())


@pytest.mark.long  # the workflow trains and scores four models
def test_noise_of_a_run(run):
    found = run("noise_of_a_run", "--seeds", 2, "--draws", 2)[1]
    assert {name: len(of["next_line, bpb"]) for name, of in found["scores"].items()} == {"whole": 2, "shorter": 2}
    assert found["verdicts"]["one model, 1 and 1 seeds"]["runs"] == 1


def test_near_duplicates(run):
    printed, found = run("near_duplicates", "--documents", 400, "--peer-documents", 0, "--megabytes", 1)
    result = found["400"]
    assert set(result["stages"]) == {"sketch", "find_candidates", "copy_candidates", "verify_duplicates", "removal"}
    assert result["removed_wrongly"] == {} and result["recall"]["0.0"]["removed"] == 6
    assert printed.startswith("400 documents: ")


@pytest.mark.long  # each training imports torch, transformers' its libraries
def test_learning_per_cpu_second_beside_peers(run, tiny, tmp_path):
    options = ["--systems", "caravan", "litgpt", "transformers", "--learning-rates", 1e-2, "--cpu-seconds", 0.5]
    printed, found = run("learning", *tiny, *options, "--points", 2)
    assert "litgpt is not installed and left out: pip install litgpt" in printed
    assert set(found["summary"]) == {"caravan", "transformers", "transformers, best of 1"}
    parameters = {name: row["parameters"] for name, row in found["summary"].items()}
    assert len(set(parameters.values())) == 1, "the same shape"
    tuned, default = (found["summary"][f"transformers{name}"] for name in (", best of 1", ""))
    assert tuned["loss_bits_per_byte"] < default["loss_bits_per_byte"]
    for row in found["summary"].values():
        assert row["cpu_seconds"] == pytest.approx(row["curve"][-1][0], abs=0.05)
        assert len(row["curve"]) == 2 and row["cpu_seconds"] > 0
    image = tmp_path / "learning.svg"
    words = ["--draw", "--output", tmp_path / "out.json", "--image", image]
    subprocess.run([sys.executable, "-m", "benchmarks.learning", *map(str, words)], cwd=HOME, check=True)
    assert "transformers, best of 1: " in image.read_text()
