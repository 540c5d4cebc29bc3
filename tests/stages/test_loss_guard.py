"""Bad steps are skipped; after many of them a training stops, or rolls back and skips their samples."""

import contextlib
import json

import numpy as np
import pytest

from stages.lib.tokens.loader import Samples
from stages.lib.training.trainer import Trainer
from tests.helpers.training import RECIPE, events_of, run_directory, steps_of, tensors_of, train, train_on, weights_of
from tools import replay_ledger

BATCH = RECIPE["global_batch_size"]
EVERY = {"every": 4, "keep": 10}


@contextlib.contextmanager
def poisoned(monkeypatch, samples, with_):
    """Multiply the losses of these global samples by `with_`."""
    from stages.lib.training.step import Stepper

    take, read = Stepper.take, Samples.batch
    bad = {"numbers": set(samples), "batches": set()}

    def batch(self, numbers):
        inputs, targets = read(self, numbers)
        if bad["numbers"] & set(np.asarray(numbers).tolist()):
            bad["batches"].add(inputs.tobytes())
        return inputs, targets

    def poison(self, step, inputs, targets):
        forward = self.state.model.forward

        def worsened(*given):
            loss, *others = forward(*given)
            return loss * with_, *others

        if inputs.tobytes() in bad["batches"]:
            self.state.model.forward = worsened
        try:
            return take(self, step, inputs, targets)
        finally:
            self.state.model.forward = forward

    with monkeypatch.context() as patch:
        patch.setattr(Samples, "batch", batch)
        patch.setattr(Stepper, "take", poison)
        yield


def batches(*steps):
    """Return the sample numbers of some steps, counted from 1, of an undisturbed run."""
    return [number for step in steps for number in range((step - 1) * BATCH, step * BATCH)]


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_step_that_is_not_finite_changes_nothing_and_is_recorded(corpus, tmp_path, monkeypatch, loss):
    with poisoned(monkeypatch, batches(10), loss):
        assert train(corpus, tmp_path, 9, checkpoint=EVERY) == 0
        assert train(corpus, tmp_path, 10, previous=9, checkpoint=EVERY) == 0
    entry = steps_of(tmp_path)[9]
    assert (entry["step"], entry["loss"], entry["skipped"]) == (10, None, True)
    (skip,) = [event for event in events_of(tmp_path) if event["event"] == "skip"]
    assert (skip["step"], skip["loss"], skip["samples"]) == (10, str(loss), [9 * BATCH, 10 * BATCH])
    before, after = tensors_of(tmp_path, 9), tensors_of(tmp_path, 10)
    assert all(before[name] == after[name] for name in before if not name.startswith("loss_guard"))


def test_sudden_high_loss_is_a_spike(corpus, tmp_path, monkeypatch):
    recipe = RECIPE | {"loss_guard": {"spike": 6, "window": 8}}
    with poisoned(monkeypatch, batches(3, 20), 3.0):
        assert train(corpus, tmp_path, 30, recipe=recipe) == 0
    # at step 3 too few losses are known to call one a spike
    assert [event["step"] for event in events_of(tmp_path) if event["event"] == "skip"] == [20]


def test_resumed_run_skips_the_same_spikes(corpus, tmp_path, monkeypatch):
    recipe = RECIPE | {"loss_guard": {"spike": 3, "window": 8}}
    with poisoned(monkeypatch, batches(14, 15, 20), 2.0):
        assert train(corpus, tmp_path / "uncut", 30, recipe=recipe) == 0
        for previous, until in [(None, 13), (13, 15), (15, 30)]:
            assert train(corpus, tmp_path / "cut", until, recipe=recipe, previous=previous) == 0
    skips = [[e["step"] for e in events_of(tmp_path / name) if e["event"] == "skip"] for name in ("uncut", "cut")]
    assert skips[0] == skips[1] and len(skips[0]) >= 2
    assert weights_of(tmp_path / "uncut", 30) == weights_of(tmp_path / "cut", 30)


def test_ranks_that_stop_print_one_line(corpus, tmp_path):
    recipe = RECIPE | {"optimizer": {"learning_rate": 1e38}, "loss_guard": {"bad_steps": 2}}
    code, error = train_on(2, corpus, tmp_path, 30, recipe=recipe)
    (line,) = error.splitlines()
    assert code == 2 and line.startswith("pretrain: the training stopped after 2 skipped steps in a row")


def test_many_bad_steps_in_a_row_stop_the_training_in_one_line(corpus, tmp_path, monkeypatch, capsys):
    recipe = RECIPE | {"loss_guard": {"bad_steps": 3}}
    with poisoned(monkeypatch, batches(*range(9, 30)), float("nan")):
        assert train(corpus, tmp_path, 30, recipe=recipe, checkpoint=EVERY) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "3 skipped steps in a row, the last with loss nan" in line
    assert "at step 11" in line
    # without the bad samples it resumes before them
    assert train(corpus, tmp_path, 30, recipe=recipe, checkpoint=EVERY) == 0


@pytest.mark.parametrize("killed", [False, True])
def test_rollback_loads_a_checkpoint_and_skips_the_bad_samples(corpus, tmp_path, monkeypatch, killed):
    recipe = RECIPE | {"loss_guard": {"bad_steps": 3, "on_repeated": "rollback"}}
    with poisoned(monkeypatch, batches(11, 12, 13), float("nan")):
        if killed:  # stopped between the bad steps and the next checkpoint: the same rollback again
            assert train(corpus, tmp_path, 12, recipe=recipe, checkpoint=EVERY) == 0
        assert train(corpus, tmp_path, 30, recipe=recipe, checkpoint=EVERY) == 0
    (rollback,) = [event for event in events_of(tmp_path) if event["event"] == "rollback"]
    target = 12 if killed else 8
    assert (rollback["step"], rollback["samples"]) == (target, [target * BATCH, 13 * BATCH])
    last = {entry["step"]: entry for entry in steps_of(tmp_path)}
    assert sorted(last) == list(range(1, 31))
    firsts = [last[step]["samples"][0] for step in range(target + 1, 31)]
    assert firsts == [(13 + number) * BATCH for number in range(30 - target)]
    assert all(entry["loss"] is not None for step, entry in last.items() if step > target)
    commit = json.loads((run_directory(tmp_path) / "checkpoints/00000030/commit.json").read_text())
    assert (commit["rollbacks"], commit["samples"]) == (1, (13 + 30 - target) * BATCH)
    if not killed:  # a run that is resumed after the rollback is the same
        with poisoned(monkeypatch, batches(11, 12, 13), float("nan")):
            assert train(corpus, tmp_path / "cut", 19, recipe=recipe, checkpoint=EVERY) == 0
        assert train(corpus, tmp_path / "cut", 30, recipe=recipe, previous=19, checkpoint=EVERY) == 0
        assert weights_of(tmp_path, 30) == weights_of(tmp_path / "cut", 30)


@pytest.mark.long
@pytest.mark.parametrize("milestone", [None, 12])
def test_rollback_holds_if_the_training_is_killed_before_its_next_checkpoint(corpus, tmp_path, monkeypatch, milestone):
    """It holds also if the bad steps would be good after the restart. `milestone`: in the middle of the bad steps."""
    recipe = RECIPE | {"loss_guard": {"bad_steps": 3, "on_repeated": "rollback"}}
    with poisoned(monkeypatch, batches(11, 12, 13, 14), float("nan")):
        for name in ("uncut", "cut") if milestone else ():
            assert train(corpus, tmp_path / name, milestone, recipe=recipe, checkpoint=EVERY) == 0
        assert train(corpus, tmp_path / "uncut", 30, recipe=recipe, checkpoint=EVERY) == 0
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "save", killed_after_a_rollback)
            assert train(corpus, tmp_path / "cut", 30, recipe=recipe, checkpoint=EVERY) == 1
    with poisoned(monkeypatch, batches(14), float("nan")):
        assert train(corpus, tmp_path / "cut", 30, recipe=recipe, checkpoint=EVERY) == 0
    assert weights_of(tmp_path / "uncut", 30) == weights_of(tmp_path / "cut", 30)
    (rollback,) = [event for event in events_of(tmp_path / "cut") if event["event"] == "rollback"]
    assert rollback["samples"] == [(milestone or 8) * BATCH, 13 * BATCH]
    assert replay_ledger.main(["--corpus", str(corpus), "--run", str(run_directory(tmp_path / "cut"))]) == 0


save = Trainer.save


def killed_after_a_rollback(trainer):
    if trainer.position.rollbacks:
        raise RuntimeError(f"killed at step {trainer.position.step}")
    save(trainer)


def test_training_stops_after_max_rollbacks(corpus, tmp_path, monkeypatch, capsys):
    recipe = RECIPE | {"loss_guard": {"bad_steps": 2, "on_repeated": "rollback", "max_rollbacks": 2}}
    with poisoned(monkeypatch, batches(*range(6, 60)), float("nan")):
        assert train(corpus, tmp_path, 30, recipe=recipe, checkpoint=EVERY) == 2
    assert [event["event"] for event in events_of(tmp_path)].count("rollback") == 2
    assert "2 skipped steps in a row" in capsys.readouterr().err


def test_weights_that_overflow_at_the_last_step_write_no_milestone(corpus, tmp_path, capsys):
    recipe = RECIPE | {"optimizer": {"learning_rate": 1e38}, "schedule": {"warmup_steps": 0}}
    assert train(corpus, tmp_path, 1, recipe=recipe) == 2
    assert "weights overflowed" in capsys.readouterr().err
