"""A run up to a milestone: its directory, its lease, and the manifest at its end. Every training stage is one of these.

The run directory is TRAIN_DIR/<digest of what the run belongs to>; it holds checkpoints/, metrics.jsonl, events.jsonl
and the lease.
"""

import contextlib
import os

import torch.distributed as dist

from stages.lib import files, manifest
from stages.lib.checkpoints import dcp
from stages.lib.checkpoints.manager import BELONGS_TO, IDENTITY
from stages.lib.distributed import collectives
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.training import options, sharding
from stages.lib.training.faults import run_lock
from stages.lib.training.trainer import Trainer


def _check_horizon(arguments, plan):
    if arguments.until < 1:
        raise UserError(f"--until must be at least 1, got {arguments.until}")
    if arguments.until > plan.steps:
        raise UserError(f"--until must be at most {arguments.stage_name}.steps ({plan.steps}), got {arguments.until}")


def train_to_milestone(arguments, plan, shape, facts, read_data, device, initial=None):
    """Train up to the milestone `arguments.until`, and write its manifest; all ranks call it.

    `shape`: the model's recipe. `facts`: what the run belongs to, {"recipe", "tokenizer", "vocabulary", "corpus" ...}.
    `initial`: the model to go on from, see initial.py; its digest becomes one of the facts.
    `read_data()` gives the samples and what is held out; it is called only where there is something to train.
    """
    clock = manifest.Clock(arguments.code)
    with collectives.raise_on_all_ranks():
        begin = options.of(arguments)
        _check_horizon(arguments, plan)
        # asked here, sent below: where the first rank fails, the others must not wait for what it never sends
        origin = initial.digest if initial is not None and dist.get_rank() == 0 else None
    if initial is not None:
        facts = facts | {"initial": collectives.broadcast_object(origin)}
    with collectives.raise_on_all_ranks():
        _check_previous(arguments.previous, facts)
    digest = manifest.digest_of({key: facts[key] for key in IDENTITY if key in facts})
    directory = arguments.train_dir / digest[:16]
    kept = dcp.directory_of(directory, arguments.until) / dcp.MILESTONE
    finished = _finished(kept)
    if finished:
        if dist.get_rank() == 0:
            message = "step %s was reached before: only its manifest is written; to really retrain, delete %s"
            logger.warning(message, arguments.until, directory)
    else:
        with collectives.raise_on_all_ranks():
            plan.check_ranks(dist.get_world_size(), arguments.stage_name)
            sharding.check(plan, arguments.stage_name, device)
            samples, validation = read_data()
        with run_lock.taken(directory, begin) as lease:
            finished = _finished(kept)  # by the trainer that this one waited for
            if finished is None:
                trainer = Trainer(plan, shape, samples, validation, directory, facts, device, lease, begin, initial)
                finished = _train(arguments, plan, trainer, facts, directory, lease, clock)
    with collectives.raise_on_all_ranks():
        if dist.get_rank() == 0:
            files.write_json(arguments.output, finished)


def _train(arguments, plan, trainer, facts, directory, lease, clock):
    """Train; returns what the milestone's manifest says, which is kept beside its checkpoint (None but on rank 0)."""
    content = None
    try:
        with trainer.stop_requests.heard():
            trainer.start(arguments.until)
            scores = trainer.train(arguments.until)
        with collectives.raise_on_all_ranks():
            if dist.get_rank() == 0:
                record = clock.record(
                    horizon={"steps": plan.steps},
                    run_directory=os.path.relpath(directory, arguments.output.parent),
                    validation=scores,
                    world_size=dist.get_world_size(),
                    data=trainer.samples.described(),
                )
                content = manifest.content(_identity(arguments, plan, directory, facts), record)
                lease.check()
                files.write_json(dcp.directory_of(directory, arguments.until) / dcp.MILESTONE, content)
        trainer.event("finish")
    except BaseException as error:
        with contextlib.suppress(UserError):  # what cannot be written must not hide why the run stops
            trainer.event("stop", reason=f"{type(error).__name__}: {error}")
        raise
    finally:
        trainer.close()
    return content


def _identity(arguments, plan, directory, facts):
    saved = dcp.directory_of(directory, arguments.until)
    commit = dcp.read_commit(saved)
    relative = os.path.relpath(saved, arguments.output.parent)
    outputs = dict(commit["files"]) | {dcp.COMMIT: manifest.describe(saved / dcp.COMMIT)}
    samples = arguments.until * plan.global_batch_size
    return {
        **{key: facts[key] for key in BELONGS_TO if key in facts},
        "step": arguments.until,
        "samples": samples,
        "tokens": samples * plan.seq_len,
        "checkpoint": relative,
        "outputs": {f"{relative}/{name}": outputs[name] for name in sorted(outputs)},
    }


def _finished(kept):
    """The milestone's manifest as it was first written, where its checkpoint is complete and unchanged; else None.

    All ranks call it, hash a part each, and get the same answer.
    """
    commit = content = None
    try:
        if dist.get_rank() == 0 and kept.exists():
            commit, content = dcp.read_commit(kept.parent), files.read_json(kept)
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is torn: %s", error)
    commit, content = collectives.broadcast_object((commit, content))
    if content is None:
        return None
    try:
        with collectives.raise_on_all_ranks():
            dcp.verify(kept.parent, commit, dist.get_rank(), dist.get_world_size())
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is damaged: %s", error)
        return None
    return content


def _check_previous(path, facts):
    if path is None:
        return
    previous = manifest.read(path).identity
    if any(previous.get(key) != facts.get(key) for key in IDENTITY):
        raise UserError(f"--previous {path} must be a milestone of the same run, and is not: its recipe or data differ")
