"""The data of a pretraining: packed documents, data stages, and their record."""

import json

import numpy as np
import pytest

from stages.lib.model.loss import IGNORED
from stages.lib.tokens.corpus import Corpus
from stages.lib.tokens.loader import Samples
from tests.helpers.training import (
    RECIPE,
    check_two_ranks,
    milestone,
    refused,
    run_directory,
    steps_of,
    train,
    weights_of,
)

PHASES = [{"step": 4, "weights": {"b": 1}}, {"step": 7, "weights": {"a": 1, "b": 2}}]
HISTORY = [(0, {"a": 3.0, "b": 1.0}), (48, {"b": 1.0}), (84, {"a": 1.0, "b": 2.0})]


def packed(packing):
    """Return a recipe with packed documents and data stages."""
    return RECIPE | {"packing": packing, "document_mask": True, "data_stages": PHASES}


@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_run_of_packed_documents_cut_in_a_phase_ends_in_the_same_bits(corpus, tmp_path, packing):
    recipe = packed(packing)
    assert train(corpus, tmp_path / "uncut", 10, recipe=recipe) == 0
    for until in (5, 10):
        assert train(corpus, tmp_path / "cut", until, recipe=recipe) == 0
    assert weights_of(tmp_path / "uncut", 10) == weights_of(tmp_path / "cut", 10)
    losses = [entry["loss"] for entry in steps_of(tmp_path / "uncut")]
    assert losses[-1] < losses[0] - 0.5


@pytest.mark.long
def test_two_ranks_train_on_what_one_does_though_they_mask_unequally(corpus, tmp_path):
    check_two_ranks(corpus, tmp_path, packed("best_fit"))


@pytest.mark.parametrize("packing", ["chunk", "concat", "best_fit"])
def test_metrics_say_exactly_what_each_source_gave(corpus, tmp_path, packing):
    assert train(corpus, tmp_path, 10, recipe=packed(packing)) == 0
    samples = Samples(Corpus(corpus), HISTORY, RECIPE["seq_len"], 0, packing=packing)
    sources, targets = samples.locate(np.arange(120))[0], samples.batch(np.arange(120))[1]
    for entry in steps_of(tmp_path):
        end = entry["samples"][1]
        for number, name in enumerate("ab"):
            of_source = sources[:end] == number
            assert entry["source_tokens"][name] == np.count_nonzero(targets[:end][of_source] != IGNORED)
            assert entry["source_epochs"][name] == of_source.sum() / samples.rows[number]


def test_record_says_what_the_weights_were_rounded_to(corpus, tmp_path):
    assert train(corpus, tmp_path, 8, recipe=RECIPE | {"weights": {"a": 2, "b": 1}, "data_stages": PHASES[:1]}) == 0
    data = json.loads(milestone(tmp_path, 8).read_text())["record"]["data"]
    slots = {entry["from_sample"]: entry["slots"] for entry in data["mixture"]}
    assert slots == {0: {"a": 2731, "b": 1365}, 48: {"b": 4096}}
    assert set(data["rows"]) == {"a", "b"}
    (path, *_) = (run_directory(tmp_path) / "checkpoints").glob("*/commit.json")
    assert json.loads(path.read_text())["data"]["history"] == [[0, {"a": 2.0, "b": 1.0}], [48, {"b": 1.0}]]


def test_what_cannot_be_is_refused_in_one_line(corpus, tmp_path, capsys):
    for stages, said in (
        (PHASES[::-1], "[1].step must be greater than 7 and less than steps (30)"),
        ([{"step": 30, "weights": {"a": 1}}], "[0].step must be greater than 0 and less"),
        ([{"step": 3, "weights": {}}], "[0].weights must give at least one source"),
        ([{"step": 3, "weights": {"a": 1, "b": 1e-5}}], "[0].weights.b must be at least 1/4"),
        ([{"step": 3, "weights": {"c": 1}}], "[0].weights.c must name a source of the corpus (a, b)"),
    ):
        line = refused(capsys, corpus, tmp_path, recipe=RECIPE | {"data_stages": stages})
        assert f"pretrain.data_stages{said}" in line
