"""Preference tuning by the command line of stages.finetune: DPO on any ranks and after any kill."""

import json
import math
import random

import numpy as np
import pytest
import torch
from torch.nn.functional import logsigmoid

from stages.finetune import FinetuneRecipe
from stages.lib import manifest
from stages.lib.checkpoints import find_model
from stages.lib.model.loss import IGNORED
from stages.lib.sources.examples import read_preferences
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.training import run as training_run
from stages.lib.training.objectives import dpo as dpo_module
from stages.lib.training.objectives.dpo import Dpo, sequence_log_probs
from stages.lib.training.settings.recipe import DpoRecipe
from stages.lib.tuning.tuning_sources import TuningSources
from tests.helpers import gradients, training
from tests.helpers.data_fixtures import listed, write_jsonl
from tests.helpers.faults import flip_bit
from tests.helpers.training import (
    events_of,
    kill_all,
    milestone,
    run_directory,
    saved,
    steps_of,
    wait_until,
    weights_of,
)
from tests.stages import test_finetune
from tests.stages.test_finetune import BASE_STEPS, SEQ_LEN, converted, tune

RECIPE = {
    "seq_len": SEQ_LEN,
    "global_batch_size": 6,
    "dtype": "float32",
    "weights": {"choices": 1},
    "dpo": {"beta": 0.5},
    "optimizer": {"learning_rate": 1e-3, "weight_decay": 0},
    "schedule": {"warmup_steps": 2},
}
STEPS = 12
SHORT = {"steps": STEPS, "checkpoint": {"every": 4, "keep": 2}}
PAIRS = 42


def records(count=PAIRS):
    """Prompts whose chosen completion is short and whose rejected one is long."""
    chance = random.Random(count)
    for number in range(count):
        animal = chance.choice(("camel", "horse", "goat", "mule"))
        yield {"prompt": f"The {animal} no. {number} ", "chosen": "rests.", "rejected": f"runs {'on ' * (number % 4)}."}


def preferences_listed(directory, entries, **source):
    """The list of a source of preferences, a fifth of them for validation."""
    path = write_jsonl(directory / "choices.jsonl", entries)
    return listed(directory, "choices", {"kind": "preference", "paths": [path], "validation": 0.2} | source)


@pytest.fixture(scope="module")
def made(pretrained):
    """The results of `pretrained`, and the list of preferences."""
    preferences_listed(pretrained, records())
    return pretrained


def given(made, **others):
    """The inputs of the stage that are not those of test_finetune."""
    return {"--sources": made / "sources/choices/list.json"} | others


def dpo(made, run, until=STEPS, recipe=RECIPE, **keywords):
    """Run the stage in this process; return its exit code."""
    return tune(made, run, until, recipe, given=given(made), **(SHORT | keywords))


@pytest.fixture(scope="module")
def whole(made, tmp_path_factory):
    """A run that nothing disturbed."""
    run = tmp_path_factory.mktemp("whole")
    assert dpo(made, run) == 0
    return run


@pytest.fixture(scope="module")
def precise(made, tmp_path_factory):
    """The same in float64, with validations on the way."""
    run = tmp_path_factory.mktemp("precise")
    assert dpo(made, run, recipe=RECIPE | {"dtype": "float64"}, validation={"every": 4, "tokens": 2000}) == 0
    return run


def samples_of(made):
    """The samples of the source of preferences."""
    source = read_preferences(made / "sources/choices/list.json")
    tokenizer = Tokenizer(made / "tokenizers/main/manifest.json")
    recipe = FinetuneRecipe(**RECIPE | {"steps": 1, "dpo": DpoRecipe(beta=0.5)})
    return TuningSources(sources={"choices": source}).data(tokenizer, True, recipe, lambda _: 2000).samples


def base_model(made, dtype=torch.float64):
    """The model before tuning."""
    return find_model.load(find_model.find(milestone(made / "runs/base", BASE_STEPS)), dtype, "cpu")


def prompt_of(row):
    """The number of tokens before the completion."""
    return int(row.is_target.argmax())


def log_probs_of(model, pair):
    """ln p of the completion of both rows of a pair, each row read alone by plain operations: float64 [2]."""
    found = []
    for row in pair:
        ids = torch.from_numpy(row.ids).long()
        scores = model.logits(ids[None, :-1])[0].double().log_softmax(-1)
        found.append(scores.gather(1, ids[1:, None])[row.is_target[1:]].sum())
    return torch.stack(found)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.2])
def test_loss_and_rewards_are_those_of_the_published_formula(made, label_smoothing):
    # Rafailov et al., equation 7; with label smoothing, equation 3 of Mitchell's note on conservative DPO
    data, model, beta = samples_of(made), base_model(made), 0.3
    pairs = data.pairs.pairs[:5]
    with torch.no_grad():
        before = torch.stack([log_probs_of(model, pair) for pair in pairs])
        for parameter in model.parameters():
            parameter.mul_(1.05)
        after = torch.stack([log_probs_of(model, pair) for pair in pairs])
    rewards = beta * (after - before)
    margins = rewards[:, 0] - rewards[:, 1]
    losses = -(1 - label_smoothing) * logsigmoid(margins) - label_smoothing * logsigmoid(-margins)
    expected = [losses, rewards[:, 0], rewards[:, 1], margins, (margins > 0).double(), after[:, 0], after[:, 1]]
    objective = Dpo(beta, label_smoothing)
    objective.reference = before
    arrays = [torch.from_numpy(rows).long() for rows in data.pairs.read(np.arange(5))]
    loss, figures = objective.sums(model, [*arrays, torch.arange(5)], None)
    assert figures.tolist() == pytest.approx([values.sum().item() for values in expected], abs=1e-9)
    assert loss.item() == pytest.approx(losses.sum().item(), abs=1e-9)
    assert 0 < figures[4] <= 5


def test_rewards_begin_at_0_and_margins_grow_by_the_initial_model(precise):
    steps = steps_of(precise)
    first, last = steps[0], steps[-1]
    assert first["loss"] == pytest.approx(math.log(2), abs=1e-9)
    assert first["rewards/margins"] == pytest.approx(0, abs=1e-9)
    assert last["rewards/margins"] > 0.5 and last["rewards/accuracies"] > 0.8 and last["loss"] < 0.6
    for entry in steps:
        assert entry["rewards/margins"] == pytest.approx(entry["rewards/chosen"] - entry["rewards/rejected"], abs=1e-9)
        assert entry["tokens"] == entry["step"] * 6 * 2 * SEQ_LEN
    entries = map(json.loads, (run_directory(precise) / "metrics.jsonl").read_text().splitlines())
    scores = [entry["validation"]["choices"] for entry in entries if "validation" in entry]
    assert scores[-1]["rewards/margins"] > scores[0]["rewards/margins"] > 0
    recorded = json.loads(milestone(precise, STEPS).read_text())
    assert recorded["record"]["validation"]["choices"] == scores[-1]
    assert recorded["identity"]["recipe"]["dpo"] == {"beta": 0.5}


def test_validation_is_that_of_the_two_models(made, precise):
    data, base = samples_of(made), base_model(made)
    tuned = find_model.load(find_model.find(milestone(precise, STEPS)), torch.float64, "cpu")
    pairs = [data.pairs.pairs[number] for number in data.for_validation(2000)]
    with torch.no_grad():
        rewards = [0.5 * (log_probs_of(tuned, pair) - log_probs_of(base, pair)) for pair in pairs]
    margins = torch.stack(rewards) @ torch.tensor([1.0, -1.0], dtype=torch.float64)
    scores = json.loads(milestone(precise, STEPS).read_text())["record"]["validation"]["choices"]
    assert scores["loss"] == pytest.approx(-logsigmoid(margins).mean().item(), abs=1e-9)
    assert scores["rewards/margins"] == pytest.approx(margins.mean().item(), abs=1e-9)
    assert scores["rewards/accuracies"] == (margins > 0).double().mean().item()


def test_sample_is_a_pair_and_a_pure_function_of_its_number(made):
    data = samples_of(made)
    inputs, targets, numbers = data.batch(np.arange(3 * data.train_pairs))
    for epoch in np.split(numbers, 3):
        assert sorted(epoch) == list(range(data.train_pairs))
    assert inputs.shape == targets.shape == (len(numbers), 2, SEQ_LEN)
    for place in (40, 3, len(numbers) - 1):
        alone = data.batch(np.array([place]))
        for array, whole in zip(alone, (inputs, targets, numbers), strict=True):
            assert (array[0] == whole[place]).all()
    for pair, number in zip(zip(inputs, targets, strict=True), numbers, strict=True):
        for ids, learnt, row in zip(*pair, data.pairs.pairs[number], strict=True):
            assert ids[: len(row.ids)].tolist() == row.ids.tolist()
            prompt = prompt_of(row)
            assert learnt[learnt != IGNORED].tolist() == row.ids[prompt:].tolist()
            assert (learnt[: prompt - 1] == IGNORED).all()


def test_killed_run_resumes_to_the_same_bits(made, whole, tmp_path):
    run = tmp_path
    # synchronous: a checkpoint of step 4 exists before step 5
    keys = {"steps": STEPS, "checkpoint": {"every": 4, "asynchronous": False}}
    arguments = test_finetune.options(made, run, STEPS, RECIPE, given=given(made), **keys)
    training.kill_when_saved(run, "finetune", arguments)
    assert steps_of(run)[-1]["step"] < STEPS
    assert dpo(made, run) == 0
    assert [event["event"] for event in events_of(run)].count("resume") == 1
    assert weights_of(run, STEPS) == weights_of(whole, STEPS)
    kept = [(run_directory(one) / dpo_module.FILE).read_bytes() for one in (run, whole)]
    assert kept[0] == kept[1]


def test_reference_is_computed_once_and_continued(made, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dpo_module, "SAVE_EVERY", 1)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert dpo(made, whole, 4) == 0
    expected = (run_directory(whole) / dpo_module.FILE).read_bytes()
    assert dpo(made, cut, 4, extra=["--minutes", "1e-9"]) == 75
    file = run_directory(cut) / dpo_module.FILE
    assert 32 < len(file.read_bytes()) < len(expected)
    assert dpo(made, cut, 4) == 0
    assert file.read_bytes() == expected
    flip_bit(file, at=-1)
    assert dpo(made, cut, 8) == 0  # from the checkpoint of step 4
    assert f"{file} is damaged" in capsys.readouterr().err
    assert file.read_bytes() == expected
    assert dpo(made, whole, 8) == 0
    assert weights_of(cut, 8) == weights_of(whole, 8)


def test_reference_leaves_no_optimizer_state_behind(made, tmp_path, monkeypatch):
    # with bfloat16 a single rank uses FSDP, whose forward passes put gathered parameters in place of the shards
    kept = []

    def check_room(trainer):
        trainer.state.tensors()
        shards = set(map(id, trainer.state.model.parameters()))
        kept.append([id(parameter) in shards for parameter in trainer.state.optimizer.state])

    monkeypatch.setattr(training_run, "check_room", check_room)
    assert dpo(made, tmp_path, 1, recipe=RECIPE | {"dtype": "bfloat16"}, sharding="none", micro_batch_size=6) == 0
    assert kept and all(kept[0])


ADAPTERS = RECIPE | {"lora": {"rank": 4, "dropout": 0.1}}


def test_adapters_are_tuned_on_preferences(made, tmp_path):
    whole, cut, later = (tmp_path / name for name in ("whole", "cut", "later"))
    assert dpo(made, whole, recipe=ADAPTERS) == 0
    losses = [step["loss"] for step in steps_of(whole)]
    assert losses[0] == pytest.approx(math.log(2), abs=1e-6)
    assert losses[-1] < losses[0]
    for previous, until in ((None, 7), (7, STEPS)):
        assert dpo(made, cut, until, recipe=ADAPTERS, previous=previous) == 0
        (run_directory(cut) / dpo_module.FILE).write_bytes(b"torn")  # computed again, without the adapters of step 7
    assert weights_of(cut, STEPS) == weights_of(whole, STEPS)
    inputs = given(made, **{"--initial": milestone(whole, STEPS)})
    assert tune(made, later, 1, ADAPTERS, given=inputs, **SHORT) == 0
    assert steps_of(later)[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)


@pytest.mark.long
def test_killed_run_with_adapters_resumes_to_the_same_bits_on_two_ranks(made, tmp_path):
    killed, uncut = tmp_path / "killed", tmp_path / "uncut"
    keys = SHORT | {"steps": 30, "micro_batch_size": 1, "sharding": "full"}
    options = [test_finetune.options(made, run, 30, ADAPTERS, given=given(made), **keys) for run in (killed, uncut)]
    process = training.launch(2, options[0], "finetune")
    wait_until(lambda: saved(killed), process)
    kill_all(process)
    assert steps_of(killed)[-1]["step"] < 30
    for arguments in options:
        training.run_on(2, "stages.finetune", *arguments)
    assert [event["event"] for event in events_of(killed)].count("resume") == 1
    assert weights_of(killed, 30) == weights_of(uncut, 30)


@pytest.mark.long
def test_ranks_agree_in_float64(made, precise, tmp_path):
    recipe = RECIPE | {"dtype": "float64"}
    figures = ("loss", "grad_norm", "rewards/chosen", "rewards/rejected", "logps/chosen")
    expected = steps_of(precise)
    for ranks, sharding in ((2, "full"), (2, "none"), (3, "grad")):
        run = tmp_path / f"{ranks}{sharding}"
        keys = SHORT | {"sharding": sharding, "micro_batch_size": 1, "validation": {"every": 4, "tokens": 2000}}
        options = test_finetune.options(made, run, STEPS, recipe, given=given(made), **keys)
        training.run_on(ranks, "stages.finetune", *options)
        for ours, other in zip(expected, steps_of(run), strict=True):
            assert [ours[name] for name in figures] == pytest.approx([other[name] for name in figures], abs=1e-9)
        mine, others = (manifest.read(milestone(one, STEPS)).record["validation"]["choices"] for one in (precise, run))
        assert mine == pytest.approx(others, abs=1e-9)


@pytest.mark.long
def test_loss_figures_and_gradients_are_those_of_trl(made, tmp_path):
    from datasets import Dataset
    from transformers import AutoTokenizer, LlamaForCausalLM
    from trl import DPOConfig, DPOTrainer
    from trl.trainer.dpo_trainer import DataCollatorForPreference

    directory, beta = tmp_path / "export", 0.5
    assert converted(made, milestone(made / "runs/base", BASE_STEPS), directory) == 0
    theirs, before = (LlamaForCausalLM.from_pretrained(directory, dtype=torch.float32) for _ in range(2))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.mul_(1.05)
    theirs.save_pretrained(tmp_path / "moved")
    ours = find_model.load(find_model.find(tmp_path / "moved"), torch.float32, "cpu")

    data = samples_of(made)
    pairs = data.pairs.pairs[:6]
    rows = [
        {"prompt_ids": chosen.ids[: prompt_of(chosen)].tolist()}
        | {"chosen_ids": chosen.ids[prompt_of(chosen) :].tolist()}
        | {"rejected_ids": rejected.ids[prompt_of(rejected) :].tolist()}
        for chosen, rejected in pairs
    ]
    tokenizer = AutoTokenizer.from_pretrained(directory)
    settings = DPOConfig(
        str(tmp_path / "trl"), beta=beta, max_length=None, use_cpu=True, bf16=False, report_to="none", logging_steps=1
    )
    trainer = DPOTrainer(
        theirs, before, settings, train_dataset=Dataset.from_list([*records(4)]), processing_class=tokenizer
    )
    theirs.train()
    loss = trainer.compute_loss(theirs, DataCollatorForPreference(pad_token_id=2)(rows))
    loss.backward()
    expected = {name: values[-1] for name, values in trainer._metrics["train"].items()}

    objective = Dpo(beta)
    arrays = [torch.from_numpy(rows).long() for rows in data.pairs.read(np.arange(6))]
    base = base_model(made, torch.float32)
    with torch.no_grad():
        objective.reference = sequence_log_probs(base, *arrays, None)
    for parameter in ours.parameters():
        parameter.requires_grad_()
    total, figures = objective.sums(ours, [*arrays, torch.arange(6)], None)
    (total / 6).backward()
    assert total.item() / 6 == pytest.approx(loss.item(), abs=1e-5)
    for name, figure in zip(objective.figures[1:], figures[1:].tolist(), strict=True):
        assert figure / 6 == pytest.approx(expected[name], rel=1e-5, abs=1e-5), name

    gradients.check_equal(ours, theirs, tmp_path / "gradients", torch.float32)


@pytest.mark.long
def test_tuned_model_is_exported_and_scored_as_the_one_before(made, whole, tmp_path):
    scores = [
        test_finetune.scores(made, tmp_path / str(number), model, made / "sources/choices/list.json")
        for number, model in enumerate((milestone(made / "runs/base", BASE_STEPS), milestone(whole, STEPS)))
    ]
    assert scores[0].keys() == scores[1].keys()
    before, after = (found["completion_bits"]["bits_per_byte"]["value"] for found in scores)
    assert before != after
    export = manifest.read(tmp_path / "1/export/manifest.json")
    assert export.identity["seq_len"] == SEQ_LEN  # contexts of this length are scored, though a pair has two rows


def test_order_of_the_pairs_is_proven_by_the_ledger(made, whole, tmp_path, capsys):
    assert test_finetune.replayed(made, [made / "sources/choices/list.json"], whole) == 0
    assert f"of {samples_of(made).train_pairs} pairs of" in capsys.readouterr().out
    other = preferences_listed(tmp_path, records(PAIRS - 1))
    assert test_finetune.replayed(made, [other], whole) == 2
