"""Training that starts from another model takes from it what the recipe names."""

import json
import re
import shutil

import numpy as np
import pytest

from stages import pretrain
from stages.lib import manifest
from stages.lib.checkpoints import model_files
from stages.lib.model.architectures import LlamaRecipe
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples
from tests.helpers.export_cases import write_export
from tests.helpers.export_fixtures import random_model
from tests.helpers.fms_checkpoints import FORMATS, LAYOUTS
from tests.helpers.ranks import run_module
from tests.helpers.training import (
    RECIPE,
    change_commit,
    milestone,
    options,
    run_directory,
    steps_of,
    tensors_of,
    train,
    weights_of,
)
from tools import replay_ledger

KEEP = {"optimizer": "keep", "schedule": "continue", "data": "continue"}
RESET = {"optimizer": "reset", "schedule": "reset", "data": "reset"}
HEAVY = RECIPE | {"weights": {"a": 1, "b": 3}}
HEAVIER = RECIPE | {"weights": {"b": 6, "c": 1}, "data_stages": [{"step": 40, "weights": {"b": 12, "c": 1}}]}


@pytest.fixture(scope="module")
def base(corpus, tmp_path_factory):
    """A run of 30 steps with milestones at 20 and 30."""
    results = tmp_path_factory.mktemp("base")
    assert train(corpus, results, 20) == 0
    assert train(corpus, results, 30, previous=20) == 0
    return results


def train_from(initial, *arguments, how=RESET, recipe=RECIPE, **keywords):
    """Run the stage from another model; return its exit code."""
    recipe = recipe | {"initial": how}
    return pretrain.main([*options(*arguments, recipe=recipe, **keywords), "--initial", str(initial)])


def test_run_that_continues_all_is_the_run_that_went_on(corpus, base, tmp_path):
    # `steps` are added to the steps before: 20 + 10 is the horizon of the base
    assert train_from(milestone(base, 20), corpus, tmp_path, 10, how=KEEP, steps=10) == 0
    uncut, continued = [{entry["step"]: entry for entry in steps_of(results)} for results in (base, tmp_path)]
    for step in range(1, 11):
        for key in ("loss", "learning_rate", "grad_norm", "samples"):
            assert continued[step][key] == uncut[20 + step][key]
    for prefix in ("model.", "optimizer."):
        assert tensors_of(tmp_path, 10, prefix) == tensors_of(base, 30, prefix)


def test_reset_begins_schedule_and_data_anew_and_averages_unless_they_are_kept(corpus, base, tmp_path):
    losses = []
    for name, how in (("kept", RESET | {"optimizer": "keep"}), ("reset", RESET)):
        assert train_from(milestone(base, 20), corpus, tmp_path / name, 3, how=how) == 0
        losses.append([entry["loss"] for entry in steps_of(tmp_path / name)])
    assert losses[0][0] == losses[1][0]
    assert losses[0][1:] != losses[1][1:]
    first, anew = steps_of(base)[0], steps_of(tmp_path / "reset")[0]
    for key in ("learning_rate", "samples"):
        assert anew[key] == first[key]
    assert anew["loss"] < first["loss"] - 0.5


def test_continued_run_is_resumed_to_the_same_bits(corpus, base, tmp_path):
    keys = {"how": KEEP, "recipe": HEAVY, "steps": 10}  # other weights of the sources
    for name, previous, until in (("uncut", None, 10), ("cut", None, 4), ("cut", 4, 10)):
        assert train_from(milestone(base, 20), corpus, tmp_path / name, until, previous=previous, **keys) == 0
    assert weights_of(tmp_path / "uncut", 10) == weights_of(tmp_path / "cut", 10)
    identity = json.loads(milestone(tmp_path / "cut", 10).read_text())["identity"]
    assert identity["recipe"]["initial"] == KEEP and len(identity["initial"]) == 64


def test_what_does_not_fit_is_refused_in_one_line(corpus, base, weights, tmp_path, capsys):
    start = milestone(base, 20)
    wider = RECIPE | {"model": RECIPE["model"] | {"intermediate_size": 64}}
    capsys.readouterr()
    cases = [
        (train_from(start, corpus, tmp_path, 2, recipe=wider), "pretrain.model.intermediate_size is 64, but"),
        (
            train_from(weights / "step_7_ckp", corpus, tmp_path, 2, how=KEEP),
            "pretrain.initial.optimizer must be reset for a checkpoint of ibm-fms",
        ),
        (train_from(tmp_path / "none", corpus, tmp_path, 2), "none must be a milestone's manifest"),
        (train(corpus, tmp_path, 2, recipe=RECIPE | {"initial": RESET}), "--initial is missing"),
        (pretrain.main([*options(corpus, tmp_path, 2), "--initial", str(start)]), "pretrain.initial is missing"),
        (train(corpus, tmp_path, 2, recipe=RECIPE | {"initial": {"data": "reset"}}), "pretrain.initial.optimizer is"),
    ]
    lines = capsys.readouterr().err.splitlines()
    assert [code for code, _ in cases] == [2] * len(cases)
    assert len(lines) == len(cases)
    for line, (_, message) in zip(lines, cases, strict=True):
        assert message in line
    assert not (tmp_path / "train").exists()


def test_hugging_face_llama_is_trained_on(corpus, base, tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    LlamaForCausalLM(LlamaConfig(vocab_size=320, rms_norm_eps=1e-5, **RECIPE["model"])).save_pretrained(tmp_path / "hf")
    capsys.readouterr()
    assert train_from(tmp_path / "hf", corpus, tmp_path, 20, how=RESET | {"optimizer": "keep"}) == 2
    assert "pretrain.initial.optimizer must be reset for a Hugging Face model" in capsys.readouterr().err
    assert train_from(tmp_path / "hf", corpus, tmp_path, 20) == 0
    said = "could not be compared with that of the data: no tokenizer.json lies beside its weights"
    assert f"the tokenizer of --initial {tmp_path / 'hf'} {said}" in capsys.readouterr().err
    losses = [entry["loss"] for entry in steps_of(tmp_path)]
    assert losses[-1] < losses[0] - 0.5
    tokenizer = corpus.parents[2] / "tokenizers/main/tokenizer.json"
    shutil.copy(tokenizer, tmp_path / "hf")
    assert train_from(tmp_path / "hf", corpus, tmp_path / "same", 2) == 0
    assert "could not be compared" not in capsys.readouterr().err
    package = json.loads(tokenizer.read_text())
    package["model"]["merges"] = package["model"]["merges"][::-1]
    (tmp_path / "hf/tokenizer.json").write_text(json.dumps(package))
    assert train_from(tmp_path / "hf", corpus, tmp_path / "other", 2) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "was trained with a different tokenizer than this corpus: " in line
    assert "tokenizer.json gives other token ids" in line
    assert not (tmp_path / "other/train").exists()


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A directory with one model in several formats; `hf` is that of Hugging Face."""
    directory, recipe = tmp_path_factory.mktemp("weights"), LlamaRecipe(**RECIPE["model"])
    model = random_model(recipe, 320)
    (directory / "hf").mkdir()
    write_export(directory / "hf", recipe, model, vocab_size=320)
    for name in ("model.pth", "step_7_ckp"):
        FORMATS[name](directory / name, LAYOUTS["unfused"](model.state_dict(), recipe))
    return directory


def test_checkpoints_of_fms_give_the_losses_of_the_hugging_face_model(corpus, weights, tmp_path):
    for name in ("hf", "model.pth", "step_7_ckp"):
        assert train_from(weights / name, corpus, tmp_path / name, 2) == 0
    assert train_from(weights / "model.pth", corpus, tmp_path / "model.pth", 4, previous=2) == 0  # it resumes
    expected = [entry["loss"] for entry in steps_of(tmp_path / "hf")]
    for name in ("model.pth", "step_7_ckp"):
        assert [entry["loss"] for entry in steps_of(tmp_path / name)][:2] == expected
        assert weights_of(tmp_path / name, 2) == weights_of(tmp_path / "hf", 2)
        identity = json.loads(milestone(tmp_path / name, 2).read_text())["identity"]
        assert identity["initial"] == model_files.digest_of(weights / name, "--initial")


def test_model_that_the_first_rank_cannot_read_is_one_line_from_all(tmp_path):
    ended = run_module(2, "tests.helpers.faulty_ranks", ["torn_initial", tmp_path / "train"])
    assert ended == (2, "torn_initial: model.safetensors cannot be read\n")


def other_corpus(corpus, directory, keep, **more):
    """Make a corpus of some sources of another one, and `more`: {name: source whose text it has}."""
    identity, record = (json.loads(corpus.read_text())[key] for key in ("identity", "record"))
    sources = {name: identity["sources"][name] for name in keep}
    sources |= {name: identity["sources"][other] for name, other in more.items()}
    path = directory / corpus.name
    directory.mkdir()
    for name in [*identity["sources"], *record["files"]]:  # beside the manifest, as its relative paths say
        (directory / name).symlink_to(corpus.parent / name)
    record["bytes_scale"] |= dict.fromkeys(more, 1.0)
    manifest.write(path, "index", identity | {"sources": sources}, record)
    return path


def test_sources_go_on_where_they_were_whatever_the_weights_and_a_new_one_begins_at_its_start(corpus, base, tmp_path):
    more = other_corpus(corpus, tmp_path / "more", "ab", c="a")
    recipe = RECIPE | {"weights": {"a": 1, "b": 1, "c": 2}}
    assert train_from(milestone(base, 20), more, tmp_path / "run", 10, how=KEEP, recipe=recipe, steps=10) == 0
    commit = next(run_directory(tmp_path / "run").glob("checkpoints/*/commit.json"))
    data = json.loads(commit.read_text())["data"]
    assert data["begin"] == 240
    assert data["history"] == [[0, {"a": 3.0, "b": 1.0}], [240, {"a": 1.0, "b": 1.0, "c": 2.0}]]
    samples = Samples(Corpus(more), [tuple(entry) for entry in data["history"]], 32, 0)
    alone = {name: Samples(Corpus(more), {name: 1.0}, 32, 0) for name in "abc"}
    sources, _, windows = samples.locate(np.arange(0, 360))
    for number, name in enumerate("abc"):
        uncut = windows[sources == number].tolist()
        assert uncut == alone[name].locate(np.arange(len(uncut)))[2].tolist()
    assert not (sources[:240] == 2).any() and (sources[240:] == 2).sum() == 60
    last = steps_of(tmp_path / "run")[-1]
    assert last["source_tokens"] == {"a": (180 + 30) * 32, "b": (60 + 30) * 32, "c": 60 * 32}


def test_chain_of_runs_is_proven_and_a_changed_one_is_not(corpus, base, tmp_path, capsys):
    def replay(*runs):
        return replay_ledger.main(["--corpus", str(more), "--run", *map(str, map(run_directory, runs))])

    more = other_corpus(corpus, tmp_path / "more", "ab", c="b")
    first, second = tmp_path / "first", tmp_path / "second"
    assert train_from(milestone(base, 20), corpus, first, 30, how=KEEP, recipe=HEAVY, steps=30) == 0
    assert train_from(milestone(first, 30), more, second, 60, how=KEEP, recipe=HEAVIER, steps=60) == 0
    capsys.readouterr()
    assert replay(base, first, second) == 0
    said = capsys.readouterr().out
    assert re.search(r"\nb, epoch 1: (\d+) of \1 chunks of 32 tokens\nb, epoch 2: ", said)
    assert said.startswith("20 steps of 12 samples, up to step 20\n30 steps of 12 samples, up to step 30\n60 steps")
    assert replay(first, second) == 0  # a part of the chain begins in the middle
    assert replay(base, second) == 2
    assert "is not the run that the next one continues: its history of weights differs" in capsys.readouterr().err
    path = run_directory(first) / "metrics.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    for entry in entries:
        if "samples" in entry:
            entry["samples"] = [number - 12 for number in entry["samples"]]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    assert replay(base, first, second) == 2
    assert "WRONG step 1 begins at sample 228, and the run at sample 240" in capsys.readouterr().out


def test_chain_with_a_gap_between_two_runs_is_found(corpus, base, tmp_path, capsys):
    before, behind = shutil.copytree(base, tmp_path / "before"), tmp_path / "behind"
    assert train_from(milestone(base, 20), corpus, behind, 4, how=KEEP, steps=10) == 0
    directories = [str(run_directory(before)), str(run_directory(behind))]
    events = run_directory(before) / "events.jsonl"
    later = {"time": 0, "event": "rollback", "step": 25, "left": 28, "samples": [300, 336]}
    events.write_text(events.read_text() + json.dumps(later) + "\n")  # after what `behind` goes on from
    capsys.readouterr()
    assert replay_ledger.main(["--corpus", str(corpus), "--run", *directories]) == 0
    assert "skipped by" not in capsys.readouterr().out
    metrics = run_directory(before) / "metrics.jsonl"
    lines = [line for line in metrics.read_text().splitlines(True) if json.loads(line)["step"] <= 15]
    metrics.write_text("".join(lines))
    assert replay_ledger.main(["--corpus", str(corpus), "--run", *directories]) == 2
    assert "WRONG step 15 ends at sample 180, and the next run begins at sample 240" in capsys.readouterr().out


def test_data_that_cannot_go_on_is_refused_by_what_differs(corpus, base, tmp_path, capsys):
    start = milestone(base, 20)
    fewer = other_corpus(corpus, tmp_path / "fewer", "a")
    changed = other_corpus(corpus, tmp_path / "changed", "a", b="a")
    cases = [
        (corpus, {"seq_len": 16}, "a different seq_len"),
        (corpus, {"seed": 1}, "a different seed"),
        (corpus, {"packing": "best_fit"}, "a different packing"),
        (fewer, {"weights": {"a": 1}}, "a different corpus, which had the source b"),
        (changed, {}, "a different text of the source b"),
    ]
    capsys.readouterr()
    for made, other, said in cases:
        assert train_from(start, made, tmp_path / "run", 10, how=KEEP, recipe=RECIPE | other, steps=10) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("pretrain: pretrain.initial.data cannot continue: --initial ")
        assert line.endswith(f"was trained with {said}; set it to reset")
    assert not (tmp_path / "run/train").exists()


def test_checkpoint_that_does_not_say_its_sources_goes_on_with_its_corpus_alone(corpus, base, tmp_path, capsys):
    start = shutil.copytree(run_directory(base) / "checkpoints/00000020", tmp_path / "checkpoints/00000020")
    change_commit(start, data=None)
    assert train_from(start, corpus, tmp_path / "same", 10, how=KEEP, steps=10) == 0
    assert [entry["loss"] for entry in steps_of(tmp_path / "same")] == [e["loss"] for e in steps_of(base)[20:]]
    more = other_corpus(corpus, tmp_path / "more", "ab", c="a")
    capsys.readouterr()
    assert train_from(start, more, tmp_path / "other", 10, how=KEEP, steps=10) == 2
    assert "was trained with a different corpus; set it to reset" in capsys.readouterr().err
