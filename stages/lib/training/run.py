"""A run up to a milestone: its directory, its lease, its start, and its manifest, by `train_to_milestone`.

The run directory is TRAIN_DIR/<digest of the run's identity>; it holds checkpoints/, metrics.jsonl, events.jsonl and
the lease.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed as dist

from stages.lib import files, manifest, space
from stages.lib.checkpoints.commit import COMMIT, MILESTONE, directory_of, read_commit, verify
from stages.lib.distributed import collectives
from stages.lib.errors import Preempted, UserError
from stages.lib.log import logger
from stages.lib.model import flops
from stages.lib.run_directory import history
from stages.lib.run_directory.events import Lineage, read_events
from stages.lib.run_directory.run_identity import DIRECTORY_KEYS, RunIdentity
from stages.lib.training import parallelize, run_lock, stop_requests
from stages.lib.training.metrics.callback import ProgressLine
from stages.lib.training.metrics.trackers import Trackers
from stages.lib.training.objectives.objective import Preparation
from stages.lib.training.optimizers import schedule
from stages.lib.training.settings import requirements
from stages.lib.training.settings.options import Start
from stages.lib.training.settings.recipe import FORWARD_SHARE
from stages.lib.training.stop_requests import StopRequested
from stages.lib.training.trainer import Run, Trainer, TrainingData

if TYPE_CHECKING:
    from stages.lib.manifest import ModelManifest
    from stages.lib.manifest_types import ModelIdentity
    from stages.lib.run_directory.lease import Lease


def check_until(until: int, last: int, where: str) -> None:
    """Raise UserError unless a milestone is at least 1 and at most `last`, the value of the key `where`."""
    if until < 1:
        raise UserError(f"--until must be at least 1, got {until}")
    if until > last:
        raise UserError(f"--until must be at most {where} ({last}), got {until}")


def train_to_milestone(arguments: argparse.Namespace, run: Run, read_data: Callable[[], TrainingData]) -> None:
    """Train up to the milestone `arguments.until`, and write its manifest; all ranks call it.

    The digest of `run.initial` becomes part of the run's identity. `read_data` is called only if there is something to
    train.
    """
    clock, until, where = manifest.Clock(arguments.code), arguments.until, arguments.stage_name
    is_first = dist.get_rank() == 0
    with collectives.raise_on_all_ranks():
        start = Start.from_args(arguments)
        check_until(until, run.recipe.steps, f"{where}.steps")
        # computed here, sent below: if the first rank fails, the others must not wait for the broadcast
        initial = run.initial.digest if run.initial is not None and is_first else None
    if run.initial is not None:
        identity = dataclasses.replace(run.identity, initial=collectives.broadcast_object(initial))
        run = dataclasses.replace(run, identity=identity)
    with collectives.raise_on_all_ranks():
        previous = None if arguments.previous is None else _previous(arguments.previous, until, run.identity)
    directory = arguments.train_dir / run.identity.digest()[:16]
    path = directory_of(directory, until) / MILESTONE
    milestone = _reached_before(path)
    if milestone:
        with collectives.raise_on_all_ranks():
            if previous is not None and is_first:
                _check_descent(previous, milestone, run, directory)
        if is_first:
            run_lock.clear_leftovers(directory)
            message = "step %s was reached before: only its manifest is written; to train again, delete %s"
            logger.warning(message, until, directory)
    else:
        with collectives.raise_on_all_ranks():
            run.recipe.check_ranks(dist.get_world_size(), where)
            parallelize.check(run.recipe, where, run.device)
            requirements.check_device(run.recipe, where, run.device)
            if run.recipe.float8:  # of a fine-tuning the model is known only now
                requirements.check_float8(run.recipe, where, run.model_config, has_lora=run.lora is not None)
            slow = requirements.slow_on_cpu(run.recipe, where) if run.device.type == "cpu" else None
            if slow is not None and is_first:
                logger.warning("%s", slow)
            data = read_data()
        with run_lock.acquire_run_lock(directory, start) as lease:
            milestone = _reached_before(path)  # by the trainer that this one waited for
            if milestone is None:
                with collectives.raise_on_all_ranks():
                    if run.lora is not None and is_first:
                        assert run.initial is not None
                        run.initial.record(directory)  # no checkpoint holds the weights that LoRA freezes
                trainer = Trainer(run, data, directory, lease, start, previous)
                milestone = _train(trainer, until, lease, clock, arguments.output.parent)
    with collectives.raise_on_all_ranks():
        if is_first:
            files.clear_leftovers(arguments.output)
            files.write_json(arguments.output, milestone)


def _train(
    trainer: Trainer, until: int, lease: Lease | None, clock: manifest.Clock, home: Path
) -> dict[str, Any] | None:
    """Train; return the milestone's manifest, which is kept beside its checkpoint (None except on rank 0).

    `home`: the directory to which its paths are relative.
    """
    content, run, directory = None, trainer.run, trainer.directory
    checkpoint = directory_of(directory, until)
    try:
        with trainer.stop_requests.handle_signals():
            resume(trainer, until)
            scores = trainer.train(until)
        with collectives.raise_on_all_ranks():
            if lease is not None:
                relative = os.path.relpath(checkpoint, home)
                outputs = read_commit(checkpoint)["files"] | {COMMIT: manifest.describe(checkpoint / COMMIT)}
                identity: ModelIdentity = {
                    **run.identity.owner(),
                    "step": until,
                    "samples": until * run.recipe.global_batch_size,
                    "tokens": trainer.step_metrics.tokens_at(until),
                    "checkpoint": relative,
                    "outputs": {f"{relative}/{name}": outputs[name] for name in sorted(outputs)},
                }
                record = {
                    **clock.record(),
                    **({} if run.initial is None else {"initial": str(run.initial.path)}),
                    "horizon": {"steps": run.recipe.steps},
                    "run_directory": os.path.relpath(directory, home),
                    "validation": scores,
                    "world_size": dist.get_world_size(),
                    "data": trainer.data.samples.described(),
                    "logs": manifest.described(history.logs(directory), home),
                }
                content = manifest.content(trainer.start.stage, identity, record)
                lease.check()
                files.write_json(checkpoint / MILESTONE, content)
        trainer.event("finish")
    except BaseException as error:
        preempted = isinstance(error, Preempted)
        reason = str(error) if preempted else f"{type(error).__name__}: {error}"
        with contextlib.suppress(UserError):  # a failing write must not hide why the run stops
            trainer.event("stop", reason=reason, preempted=preempted)
        raise
    finally:
        trainer.callbacks.close()
    return content


def resume(trainer: Trainer, until: int) -> None:
    """Load the newest complete checkpoint at or below step `until`, or initial weights if there is none.

    Raises UserError if the trainer has a previous milestone, and no checkpoint descends from it.
    """
    run, recipe, state, position = trainer.run, trainer.recipe, trainer.state, trainer.position
    profiled = trainer.start.profile_steps
    if profiled is not None and profiled[0] > until:
        raise collectives.CollectiveError(
            f"--profile-steps must begin at or before step {until}, where this training ends, got {profiled[0]}"
        )
    if trainer.is_first:
        stop_requests.clear_marker(trainer.directory)
    trainer.checkpoints.clear_leftovers()
    checkpoint = trainer.checkpoints.newest(until)

    def poll() -> None:
        trainer.callbacks.phase("save", 0)
        trainer.status.poll()

    preparation = Preparation(
        samples=trainer.data.samples,
        model=state.model,
        device=run.device,
        micro_batch_size=recipe.micro_batch_size,
        directory=trainer.directory,
        init_weights=lambda: state.init_weights(run.initial),
        reshard=lambda: parallelize.reshard(state.model),
        poll=poll,
    )
    try:
        trainer.stepper.objective.prepare(preparation)
    except StopRequested as request:
        trainer.stop(str(request))
    trainer.callbacks.phase("start", 0)
    position.start_at(checkpoint)
    if position.step < until:
        position.repeat_rollback(trainer.directory)
    check_room(trainer)
    trainer.checkpointer.prepare(state.tensors())
    facts: dict[str, Any] = {"steps": recipe.steps, "parameters": state.num_parameters()}
    if run.model_config.router is not None:
        facts["active_parameters"] = flops.active_count(run.model_config, run.identity.vocab_size)
    facts |= {"float8": True} if recipe.float8 else {}
    facts |= {} if run.lora is None else {"trained_parameters": state.num_trained()}
    throughput = trainer.throughput.facts()
    with collectives.raise_on_all_ranks():
        if trainer.is_first and position.saved_at is not None:
            commit = facts["commit"] = trainer.checkpoints.commit_digest(position.saved_at)
            steps_then = Lineage(read_events(trainer.directory)).steps(commit)
            if steps_then is not None and position.saved_at != until:  # else no step follows
                why = schedule.jump(
                    recipe.schedule,
                    recipe.optimizer.learning_rate,
                    position.saved_at,
                    (steps_then, recipe.steps),
                    trainer.start.stage,
                    run.identity.steps_before,
                )
                if why:
                    logger.warning("%s", why)
    trainer.event("start" if checkpoint is None else "resume", **facts, **throughput)
    with collectives.raise_on_all_ranks():
        if trainer.is_first:
            name = f"{trainer.directory.parents[1].name}-{trainer.directory.name}"
            shown = facts | run.identity.to_json() | throughput
            trainer.callbacks.add(Trackers(recipe.trackers, trainer.directory, name, shown, position.step))
            trained = trainer.step_metrics.tokens_per_step
            per_evaluation = FORWARD_SHARE * trainer.data.validation.num_tokens / trained
            trainer.callbacks.add(ProgressLine(until, trained, recipe.validation.every, per_evaluation))


def check_room(trainer: Trainer) -> None:
    """Raise UserError if the disk has no room, or the job no time, for the next checkpoint."""
    with collectives.raise_on_all_ranks():
        if trainer.is_first:
            trainer.stop_requests.check_time(trainer.start.end_of_job)
            num_bytes = trainer.state.num_bytes()[1]
            space.require(trainer.directory, num_bytes, "a checkpoint", num_files=dist.get_world_size())


def _reached_before(path: Path) -> dict[str, Any] | None:
    """Return the milestone's manifest as first written, if its checkpoint is complete and unchanged, else None.

    All ranks call it, hash a part each, and get the same answer.
    """
    commit = content = None
    try:
        if dist.get_rank() == 0 and path.exists():
            milestone = manifest.read(path, *manifest.TRAINING)
            commit = read_commit(path.parent)
            content = manifest.content(milestone.stage, milestone.identity, milestone.record)
    except UserError as error:
        logger.warning("the milestone was reached before, but is incomplete: %s", error)
    commit, content = collectives.broadcast_object((commit, content))
    if content is None:
        return None
    try:
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                # other files: the checkpoint was damaged, and saved again by other ranks
                outputs = content["identity"].get("outputs", {})
                described = {Path(name).name: output for name, output in outputs.items()}
                if described != commit["files"] | {COMMIT: manifest.describe(path.parent / COMMIT)}:
                    raise UserError(f"{path} lists other files than {COMMIT}")
            verify(path.parent, commit, dist.get_rank(), dist.get_world_size())
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is damaged: %s", error)
        return None
    return content


def _previous(path: Path, until: int, identity: RunIdentity) -> ModelManifest:
    """Read the milestone before. Raises UserError if it is of another run, or not before this one."""
    previous = manifest.read(path, *manifest.TRAINING)
    key = identity.first_difference(previous.identity, DIRECTORY_KEYS)
    if key is not None:
        raise UserError(f"--previous {path} is a milestone of another run: its {key} differs")
    if previous.identity["step"] >= until:
        raise UserError(
            f"--previous {path} is the milestone of step {previous.identity['step']}, which is not before step {until}"
        )
    return previous


def _check_descent(previous: ModelManifest, milestone: dict[str, Any], run: Run, directory: Path) -> None:
    """Raise UserError if a milestone that was reached before `previous` was inserted had another schedule up to there.

    With the same schedule it passed through the same bits.
    """
    identity, record, lineage = milestone["identity"], milestone["record"], Lineage(read_events(directory))
    commit = manifest.commit_digest(identity)
    if commit not in lineage or lineage.descends(commit, manifest.commit_digest(previous.identity)):
        return
    before, horizons = run.identity.steps_before, (previous.record["horizon"]["steps"], record["horizon"]["steps"])
    rates = [
        [schedule.learning_rate(run.recipe.schedule, 1.0, before + step, before + steps) for steps in set(horizons)]
        for step in range(previous.identity["step"])
    ]
    if any(len(set(of_step)) > 1 for of_step in rates):
        raise UserError(
            f"--previous {previous.path} was trained with steps {horizons[0]}, but the milestone of step "
            f"{identity['step']} does not descend from it: it was reached before, with steps {horizons[1]}; leave the "
            f"milestone of step {previous.identity['step']} out, or delete {directory} to train all milestones again"
        )
