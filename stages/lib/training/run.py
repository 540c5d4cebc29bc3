"""A run up to a milestone: its directory, its lease, and its manifest. Every training stage calls train_to_milestone.

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

from stages.lib import files, manifest
from stages.lib.checkpoints.commit import COMMIT, MILESTONE, directory_of, read_commit, verify
from stages.lib.distributed import collectives
from stages.lib.errors import Preempted, UserError
from stages.lib.log import logger
from stages.lib.run_directory import history
from stages.lib.run_directory.events import Lineage, read_events
from stages.lib.run_directory.run_identity import DIRECTORY_KEYS, RunIdentity
from stages.lib.training import run_lock, sharding
from stages.lib.training.acceleration import devices, requirements
from stages.lib.training.inputs import Run, TrainingData
from stages.lib.training.optimizers import schedule
from stages.lib.training.resume import resume
from stages.lib.training.settings.options import Start
from stages.lib.training.trainer import Trainer

if TYPE_CHECKING:
    from stages.lib.manifest import Manifest
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
    clock = manifest.Clock(arguments.code)
    with collectives.raise_on_all_ranks():
        start = Start.from_args(arguments)
        check_until(arguments.until, run.recipe.steps, f"{arguments.stage_name}.steps")
        # computed here, sent below: if the first rank fails, the others must not wait for the broadcast
        initial = run.initial.digest if run.initial is not None and dist.get_rank() == 0 else None
    if run.initial is not None:
        identity = dataclasses.replace(run.identity, initial=collectives.broadcast_object(initial))
        run = dataclasses.replace(run, identity=identity)
    with collectives.raise_on_all_ranks():
        previous = _previous(arguments, run.identity)
    directory = arguments.train_dir / run.identity.digest()[:16]
    kept = directory_of(directory, arguments.until) / MILESTONE
    finished = _finished(kept)
    if finished:
        with collectives.raise_on_all_ranks():
            if previous is not None and dist.get_rank() == 0:
                _check_descent(previous, finished, run, directory)
        if dist.get_rank() == 0:
            run_lock.clear_leftovers(directory)
            message = "step %s was reached before: only its manifest is written; to train again, delete %s"
            logger.warning(message, arguments.until, directory)
    else:
        with collectives.raise_on_all_ranks():
            run.recipe.check_ranks(dist.get_world_size(), arguments.stage_name)
            sharding.check(run.recipe, arguments.stage_name, run.device)
            devices.check_device(run.recipe, arguments.stage_name, run.device)
            if run.recipe.float8:  # of a fine-tuning the model is known only now
                has_lora = run.lora is not None
                requirements.check_float8(run.recipe, arguments.stage_name, run.model_config, has_lora=has_lora)
            slow = requirements.slow_on_cpu(run.recipe, arguments.stage_name) if run.device.type == "cpu" else None
            if slow is not None and dist.get_rank() == 0:
                logger.warning("%s", slow)
            data = read_data()
        with run_lock.acquire_run_lock(directory, start) as lease:
            finished = _finished(kept)  # by the trainer that this one waited for
            if finished is None:
                _record_base(run, directory)
                finished = _train(arguments, Trainer(run, data, directory, lease, start, previous), lease, clock)
    with collectives.raise_on_all_ranks():
        if dist.get_rank() == 0:
            files.clear_leftovers(arguments.output)
            files.write_json(arguments.output, finished)


def _record_base(run: Run, directory: Path) -> None:
    """Write where the model lies whose weights LoRA freezes."""
    with collectives.raise_on_all_ranks():
        if run.lora is not None and dist.get_rank() == 0:
            assert run.initial is not None
            run.initial.record(directory)


def _train(
    arguments: argparse.Namespace, trainer: Trainer, lease: Lease | None, clock: manifest.Clock
) -> dict[str, Any] | None:
    """Train; return the milestone's manifest, which is kept beside its checkpoint (None except on rank 0)."""
    content, directory = None, trainer.directory
    try:
        with trainer.stop_requests.handle_signals():
            resume(trainer, arguments.until)
            scores = trainer.train(arguments.until)
        with collectives.raise_on_all_ranks():
            if lease is not None:
                initial = trainer.run.initial
                record = clock.record(
                    **({} if initial is None else {"initial": str(initial.path)}),
                    horizon={"steps": trainer.recipe.steps},
                    run_directory=os.path.relpath(directory, arguments.output.parent),
                    validation=scores,
                    world_size=dist.get_world_size(),
                    data=trainer.data.samples.described(),
                    logs=manifest.described(history.logs(directory), arguments.output.parent),
                )
                content = manifest.content(
                    arguments.stage_name, _milestone_identity(arguments, trainer, directory), record
                )
                lease.check()
                files.write_json(directory_of(directory, arguments.until) / MILESTONE, content)
        trainer.event("finish")
    except BaseException as error:
        preempted = isinstance(error, Preempted)
        reason = str(error) if preempted else f"{type(error).__name__}: {error}"
        with contextlib.suppress(UserError):  # a failing write must not hide why the run stops
            trainer.event("stop", reason=reason, preempted=preempted)
        raise
    finally:
        trainer.close()
    return content


def _milestone_identity(arguments: argparse.Namespace, trainer: Trainer, directory: Path) -> dict[str, Any]:
    saved = directory_of(directory, arguments.until)
    commit = read_commit(saved)
    relative = os.path.relpath(saved, arguments.output.parent)
    outputs = dict(commit["files"]) | {COMMIT: manifest.describe(saved / COMMIT)}
    return {
        **trainer.run.identity.owner(),
        "step": arguments.until,
        "samples": arguments.until * trainer.recipe.global_batch_size,
        "tokens": trainer.step_metrics.tokens_at(arguments.until),
        "checkpoint": relative,
        "outputs": {f"{relative}/{name}": outputs[name] for name in sorted(outputs)},
    }


def _finished(kept: Path) -> dict[str, Any] | None:
    """Return the milestone's manifest as first written, if its checkpoint is complete and unchanged, else None.

    All ranks call it, hash a part each, and get the same answer.
    """
    commit = content = None
    try:
        if dist.get_rank() == 0 and kept.exists():
            made = manifest.read(kept, *manifest.TRAINING)
            commit, content = read_commit(kept.parent), manifest.content(made.stage, made.identity, made.record)
    except UserError as error:
        logger.warning("the milestone was reached before, but is incomplete: %s", error)
    commit, content = collectives.broadcast_object((commit, content))
    if content is None:
        return None
    try:
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                _check_outputs(kept, commit, content["identity"])
            verify(kept.parent, commit, dist.get_rank(), dist.get_world_size())
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is damaged: %s", error)
        return None
    return content


def _check_outputs(kept: Path, commit: dict[str, Any], identity: dict[str, Any]) -> None:
    """Raise UserError if a kept manifest lists other files: its checkpoint was damaged, and saved by other ranks."""
    described = {Path(name).name: output for name, output in identity.get("outputs", {}).items()}
    if described != commit["files"] | {COMMIT: manifest.describe(kept.parent / COMMIT)}:
        raise UserError(f"{kept} lists other files than {COMMIT}")


def _previous(arguments: argparse.Namespace, identity: RunIdentity) -> Manifest | None:
    """Read the milestone before. Raises UserError if it is of another run, or not before this one."""
    if arguments.previous is None:
        return None
    previous = manifest.read(arguments.previous, *manifest.TRAINING)
    key = identity.first_difference(previous.identity, DIRECTORY_KEYS)
    if key is not None:
        raise UserError(
            f"--previous {arguments.previous} must be a milestone of the same run, got one with another {key}"
        )
    if previous.identity["step"] >= arguments.until:
        raise UserError(
            f"--previous {arguments.previous} must be a milestone before step {arguments.until}, got that of step "
            f"{previous.identity['step']}"
        )
    return previous


def _check_descent(previous: Manifest, finished: dict[str, Any], run: Run, directory: Path) -> None:
    """Raise UserError if a milestone that was reached before `previous` was inserted had another schedule up to there.

    With the same schedule it passed through the same bits.
    """
    identity, record, lineage = finished["identity"], finished["record"], Lineage(read_events(directory))
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
