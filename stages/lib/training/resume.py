"""The start of a training: the newest checkpoint or initial weights, and the room for the next checkpoint."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from stages.lib import space
from stages.lib.distributed import collectives
from stages.lib.log import logger
from stages.lib.model import flops
from stages.lib.run_directory.events import Lineage, read_events
from stages.lib.training import rollback
from stages.lib.training.faults import stop_requests
from stages.lib.training.faults.stop_requests import StopRequested
from stages.lib.training.metrics.callback import ProgressLine
from stages.lib.training.metrics.trackers import Trackers
from stages.lib.training.objectives.objective import Preparation
from stages.lib.training.optimizers import schedule
from stages.lib.training.settings.recipe import FORWARD_SHARE
from stages.lib.training.trainer import Trainer


def resume(trainer: Trainer, until: int) -> None:
    """Load the newest complete checkpoint at or below step `until`, or initial weights if there is none.

    Raises UserError if the trainer has a previous milestone, and no checkpoint descends from it.
    """
    run, recipe, position = trainer.run, trainer.recipe, trainer.position
    _check_profile(trainer.start.profile_steps, until)
    if trainer.is_first:
        stop_requests.clear_marker(trainer.directory)
    trainer.checkpoints.clear_leftovers()
    found = trainer.checkpoints.newest(until)
    try:
        trainer.stepper.objective.prepare(_preparation(trainer))
    except StopRequested as request:
        trainer.stop(str(request))
    trainer.callbacks.phase("start", 0)
    position.start_at(found)
    if position.step < until:
        rollback.repeat_rollback(position, trainer.directory)
    check_room(trainer)
    trainer.checkpointer.prepare(trainer.state.tensors())
    facts: dict[str, Any] = {"steps": recipe.steps, "parameters": trainer.state.num_parameters()}
    if run.model_config.router is not None:
        facts["active_parameters"] = flops.active_count(run.model_config, run.identity.vocab_size)
    facts |= {"float8": True} if recipe.float8 else {}
    facts |= {} if run.lora is None else {"trained_parameters": trainer.state.num_trained()}
    throughput = trainer.step_metrics.throughput.facts()
    with collectives.raise_on_all_ranks():
        if trainer.is_first and position.saved_at is not None:
            facts["commit"] = trainer.checkpoints.commit_digest(position.saved_at)
            _warn_of_jump(trainer, position.saved_at, facts["commit"], until)
    trainer.event("start" if found is None else "resume", **facts, **throughput)
    with collectives.raise_on_all_ranks():
        if trainer.is_first:
            name = f"{trainer.directory.parents[1].name}-{trainer.directory.name}"
            shown = facts | run.identity.to_json() | throughput
            trainer.callbacks.add(Trackers(recipe.trackers, trainer.directory, name, shown, position.step))
            trained = trainer.step_metrics.tokens_per_step
            per_evaluation = FORWARD_SHARE * trainer.data.validation.num_tokens / trained
            trainer.callbacks.add(ProgressLine(until, trained, recipe.validation.every, per_evaluation))


def _warn_of_jump(trainer: Trainer, step: int, commit: str, until: int) -> None:
    """Log a warning if the learning rate jumps, since `steps` is not what the checkpoint at `step` was trained with."""
    recipe, steps_then = trainer.recipe, Lineage(read_events(trainer.directory)).steps(commit)
    if steps_then is None or step == until:  # no step follows
        return
    peak, steps = recipe.optimizer.learning_rate, (steps_then, recipe.steps)
    before = trainer.run.identity.steps_before
    if why := schedule.jump(recipe.schedule, peak, step, steps, trainer.start.stage, before):
        logger.warning("%s", why)


def _check_profile(steps: tuple[int, int] | None, until: int) -> None:
    if steps is not None and steps[0] > until:
        raise collectives.CollectiveError(
            f"--profile-steps must begin at or before step {until}, where this training ends, got {steps[0]}"
        )


def _preparation(trainer: Trainer) -> Preparation:
    def poll() -> None:
        trainer.callbacks.phase("save", 0)
        trainer.status.poll()

    return Preparation(
        samples=trainer.data.samples,
        model=trainer.state.model,
        device=trainer.run.device,
        micro_batch_size=trainer.recipe.micro_batch_size,
        directory=trainer.directory,
        init_weights=lambda: trainer.state.init_weights(trainer.run.initial),
        reshard=trainer.state.reshard,
        poll=poll,
    )


def check_room(trainer: Trainer) -> None:
    """Raise UserError if the disk has no room, or the job no time, for the next checkpoint."""
    with collectives.raise_on_all_ranks():
        if trainer.is_first:
            trainer.stop_requests.check_time(trainer.start.end_of_job)
            num_bytes = trainer.state.num_bytes()[1]
            space.require(trainer.directory, num_bytes, "a checkpoint", num_files=dist.get_world_size())
