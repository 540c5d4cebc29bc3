"""harness_model: requests that the harness would not pass on, models with other attention, and equal requests."""

import io
import itertools
import json
import logging
import sys

import pytest
import torch

from stages.lib import log
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.scoring import harness, harness_model, loglikelihood
from stages.lib.scoring.tasks.generation_score import END
from tests.helpers import evaluations
from tools.plan import fake_step

TOKENIZER = {"bos": 1, "eos": 2, "bos_added": False}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return evaluations.export(tmp_path_factory.mktemp("made"))["--export"].parent


def loaded(directory, **options):
    return harness_model.load_model(
        directory, TOKENIZER, batch_size=4, window=16, device=torch.device("cpu"), **options
    )


def scores(model, requests):
    with process_group():
        return model._loglikelihood_tokens([(None, *request) for request in requests])


class Peak(fake_step.AllocationLog):
    """The most bytes that are allocated at a time."""

    def bytes(self):
        return max(itertools.accumulate(change for _, change, _ in self.changes))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("window", "size", "head_rows"), [(16, 4, 2048), (64, 32, 2048), (64, 32, 8)])
def test_the_least_bytes_of_a_batch_are_most_of_what_it_allocates(
    directory, monkeypatch, window, size, head_rows, dtype
):
    model = loaded(directory, dtype=dtype)
    monkeypatch.setattr(loglikelihood, "HEAD_ROWS", head_rows)  # few: the keys and values of a cache are more
    with Peak(is_gloo=False) as peak:
        harness_model._try_batch(model, size, window)
    assert 0.6 * peak.bytes() < harness_model.least_bytes(model.model, size, window) <= peak.bytes()


def test_a_batch_is_tried_only_if_its_bytes_are_free(directory, monkeypatch):
    model, tried = loaded(directory), []
    free = harness_model.least_bytes(model.model, 16, 64)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free, 80 << 30))
    monkeypatch.setattr(harness_model, "_try_batch", lambda model, size, window: tried.append(size))
    with process_group():
        assert harness_model.largest_batch(model, 64) == 16
        free -= 1
        assert harness_model.largest_batch(model, 64) == 8
        free = 0
        assert harness_model.largest_batch(model, 64) == 1
    assert tried == [16, 8]


def test_an_empty_context_is_the_prefix(directory):
    model = loaded(directory)
    (empty, _), (prefix, _) = scores(model, [([], [5, 6]), ([2], [5, 6])])
    assert empty == prefix


def test_a_local_task_generates_what_transformers_does_up_to_eos(directory, monkeypatch):
    from lm_eval.api.instance import Instance

    model, prompts = loaded(directory), ["def f", "class Range of values", "if"]
    model.separate = True

    def own(prompt, eos):
        ids = torch.tensor([model.tok_encode(prompt, add_special_tokens=False)])
        made = model.model.generate(ids, max_new_tokens=6, do_sample=False, eos_token_id=eos)[0, ids.shape[1] :]
        return made.tolist()

    eos = own(prompts[0], TOKENIZER["eos"])[2]  # one that the first text has: random weights never give the real one
    monkeypatch.setattr(harness_model.Model, "eot_token_id", eos)
    expected = []
    for prompt in prompts:
        made = own(prompt, eos)
        expected.append(model.tok_decode([id for id in made if id != eos]) + END * (eos in made))
    options = {"until": [], "do_sample": False, "max_gen_toks": 6}
    requests = [Instance("generate_until", {}, (prompt, options), 0) for prompt in prompts]
    with process_group():
        assert model.generate_until(requests) == expected
    assert expected[0].endswith(END)


@pytest.mark.parametrize(
    ("continuation", "sentence"),
    [("", r"choice 2 \(''\) of document 7 has no text"), ("value " * 17, "must have at most 16 tokens, the context")],
)
@pytest.mark.parametrize("context", ["", "def f"])
def test_an_answer_that_cannot_be_scored_is_a_sentence(directory, context, continuation, sentence):
    from lm_eval.api.instance import Instance

    request = Instance("loglikelihood", {}, (context, continuation), 2, metadata=("own", 7, 1))
    with pytest.raises(UserError, match=f"^task own: .*{sentence}"):
        loaded(directory).loglikelihood([request])


def test_attention_that_config_json_asks_for_changes_no_score(directory, tmp_path):
    for path in directory.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"attn_implementation": "eager"}))
    requests = [([1, 4, 5], [6, 7]), ([1, 4, 5], [8, 9, 9]), ([1], [3])]
    assert scores(loaded(tmp_path), requests) == scores(loaded(directory), requests)


def test_lines_of_the_harness_go_to_the_log_of_the_stage_that_runs(tmp_path, capsys):
    lines = logging.getLogger("lm_eval.tasks")
    for name in ("first", "second"):
        log.to(tmp_path / name)
        if name == "first":
            harness.settle_logging()
        lines.warning("%s line", name)
    assert (tmp_path / "first").read_text().endswith(" WARNING first line\n")
    assert (tmp_path / "second").read_text().endswith(" WARNING second line\n")
    assert (tmp_path / "first").read_text().count("\n") == 1
    log.to(None)
    lines.warning("third line")
    assert capsys.readouterr().err == "third line\n"


def test_progress_is_shown_on_the_terminal_of_the_time_at_which_the_model_is_loaded(directory, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    sys.stderr.isatty = lambda: True
    scores(loaded(directory), [([5], [6])])
    assert "batches 1/1 (100%)" in sys.stderr.getvalue()
