"""The ledger of a run is verified against corpus and recipe, or the wrong step is reported."""

import json
import re
import shutil

import numpy as np
import pytest

from stages.lib.tokens import ledger
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples
from stages.lib.tokens.packing import BestFitGroup, ConcatGroup
from tests.helpers.data_fixtures import tiny_corpus
from tests.helpers.training import RECIPE, run_directory, train, train_on
from tools import replay_ledger


def replay(corpus, *results):
    """The exit code."""
    return replay_ledger.main(["--corpus", str(corpus), "--run", *map(str, map(run_directory, results))])


@pytest.fixture(scope="module")
def epochs(corpus, tmp_path_factory):
    """A run over more than two epochs of source b, killed once and continued on two ranks."""
    results = tmp_path_factory.mktemp("epochs")
    recipe = RECIPE | {"weights": {"a": 1, "b": 8}, "global_batch_size": 48}
    assert train(corpus, results, 22, recipe=recipe, steps=60) == 0
    code, error = train_on(2, corpus, results, 60, recipe=recipe, previous=22, steps=60)
    assert code == 0, error
    return results


@pytest.mark.long
def test_run_over_several_epochs_is_proven(corpus, epochs, capsys):
    assert replay(corpus, epochs) == 0
    said = capsys.readouterr().out
    assert said.startswith("60 steps of 48 samples, up to step 60\n")
    assert said.endswith("the ledger agrees with corpus and recipe: no sample lost, none twice\n")
    seen = {
        (source, int(epoch)): (int(n.replace(",", "")), int(all_.replace(",", "")))
        for source, epoch, n, all_ in re.findall(r"(\w), epoch (\d+): ([\d,]+) of ([\d,]+) chunks", said)
    }
    assert seen["b", 1][0] == seen["b", 1][1] and seen["b", 2][0] == seen["b", 2][1]  # whole epochs: nothing was lost
    assert sum(n for n, _ in seen.values()) == 60 * 48


def changed(results, change):
    """Change the entries of the ledger, {step: entry}."""
    path = run_directory(results) / "metrics.jsonl"
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in change(entries)))


def with_samples(first, end):
    """Give step 5 other samples."""
    return lambda entries: [
        entry | {"samples": [first, end]} if entry["step"] == 5 and "samples" in entry else entry for entry in entries
    ]


def with_samples_twice(entries):
    return entries + [e | {"samples": [0, 12]} for e in entries if e["step"] == 5 and "samples" in e]


WRONG = [
    (lambda entries: [e for e in entries if e["step"] != 4], "WRONG steps 4 to 4 are missing"),
    (with_samples(36, 48), "WRONG step 5 begins at sample 36, and the step before ended at 48"),
    (with_samples(48, 59), "WRONG step 5 has 11 samples, and global_batch_size is 12"),
    (with_samples_twice, "WRONG step 5 was taken twice, with samples 48 to 60 and 0 to 12"),
]


@pytest.fixture(scope="module")
def seven_steps(corpus, tmp_path_factory):
    results = tmp_path_factory.mktemp("seven")
    assert train(corpus, results, 7) == 0
    return results


@pytest.fixture
def copied(seven_steps, tmp_path):
    """A copy of a run of seven steps, for one test to change."""
    return shutil.copytree(seven_steps, tmp_path / "copied")


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_ledger_that_is_wrong_is_named(corpus, copied, capsys, change, said):
    changed(copied, change)
    assert replay(corpus, copied) == 2
    told = capsys.readouterr()
    assert said in told.out
    assert "differs from corpus and recipe" in told.err


def skipping(count):
    """The ledger of a loader that silently leaves out samples after step 4, or gives some once more (count < 0)."""

    def skip(entries):
        for entry in entries:
            if entry["step"] > 4 and "samples" in entry:
                entry["samples"] = [sample + count for sample in entry["samples"]]
        return entries

    return skip


def test_chunk_that_is_seen_twice_is_found_and_another_corpus_is_refused(corpus, copied, tmp_path, capsys):
    assert replay(corpus, copied) == 0
    changed(copied, skipping(-12))
    assert replay(corpus, copied) == 2
    assert "chunks were seen more than once" in capsys.readouterr().out
    assert replay(tiny_corpus(tmp_path / "other", documents=150), copied) == 2
    assert "must be what" in capsys.readouterr().err


def test_chunk_that_is_lost_is_found(corpus, epochs, tmp_path, capsys):
    shutil.copytree(epochs, tmp_path / "copy")
    changed(tmp_path / "copy", skipping(48))
    assert replay(corpus, tmp_path / "copy") == 2
    assert re.search(r"WRONG b, epoch 1: \d+ chunks were lost", capsys.readouterr().out)


PACKED = RECIPE | {"weights": {"a": 1, "b": 8}, "global_batch_size": 96, "document_mask": True}


@pytest.fixture(scope="module", params=["concat", "best_fit"])
def packed(request, corpus, tmp_path_factory):
    """A run over more than an epoch of packed documents of source b, whose weights change, killed once."""
    results = tmp_path_factory.mktemp("packed")
    data_stages = [{"step": 6, "weights": {"b": 1}}, {"step": 9, "weights": {"a": 1, "b": 1}}]
    recipe = PACKED | {"packing": request.param, "data_stages": data_stages}
    for until in (8, 14):
        assert train(corpus, results, until, recipe=recipe, steps=20) == 0
    return results


def test_run_of_packed_documents_in_data_stages_is_proven(corpus, packed, capsys):
    assert replay(corpus, packed) == 0
    said = capsys.readouterr().out
    assert re.search(r"b, epoch 1: ([\d,]+) of \1 rows of 32 tokens\n", said)
    assert said.endswith("the ledger agrees with corpus and recipe: no sample lost, none twice\n")


def test_changed_ledger_of_packed_documents_is_found(corpus, packed, tmp_path, capsys):
    shutil.copytree(packed, tmp_path / "copy")
    changed(tmp_path / "copy", skipping(192))
    assert replay(corpus, tmp_path / "copy") == 2
    assert re.search(r"WRONG b, epoch 1: \d+ rows were lost", capsys.readouterr().out)


def test_changed_history_of_weights_is_found(corpus, packed, tmp_path, capsys):
    shutil.copytree(packed, tmp_path / "copy")
    for path in run_directory(tmp_path / "copy").glob("checkpoints/*/commit.json"):
        commit = json.loads(path.read_text())
        commit["data"]["begin"] = 96
        path.write_text(json.dumps(commit))
    assert replay(corpus, tmp_path / "copy") == 2
    assert "WRONG step 1 begins at sample 0, and the run at sample 96" in capsys.readouterr().out


@pytest.mark.parametrize(("packing", "layout"), [("concat", ConcatGroup), ("best_fit", BestFitGroup)])
@pytest.mark.parametrize(("less", "said"), [(1, "were lost"), (-1, "cross the end|more than once|were lost")])
def test_packing_that_loses_or_repeats_tokens_is_found(corpus, packing, layout, less, said, monkeypatch):
    samples = Samples(Corpus(corpus), {"a": 1.0}, 32, 0, packing=packing)
    assert not list(ledger.faults_of_documents(samples, "a", 0))
    segments = layout.segments

    def wrong(self, rows):
        found = segments(self, rows)
        found.counts[7] -= less
        return found

    monkeypatch.setattr(layout, "segments", wrong)
    (fault, *_) = ledger.faults_of_documents(samples, "a", 0)
    assert re.search(said, fault)


def test_row_that_is_visited_256_times_is_not_taken_for_one_that_was_lost(corpus):
    samples = Samples(Corpus(corpus), {"a": 1.0}, 32, 0)
    counts = ledger.visits(samples, [(5, 6)] * 256 + [(7, 8)])["a", 0]
    assert sorted(np.unique(counts).tolist()) == [0, 1, ledger.MAX_VISITS]
