"""Pretrain a Llama up to a milestone, from the newest checkpoint of its run directory.

    python -m stages.pretrain --corpus results/tokens/main/manifest.json --until 300 --recipe recipe.json \\
        --operation '{"steps": 300}' --train-dir results/runs/base/train --output results/runs/base/models/00000300.json

On several ranks the same, behind torchrun: `workflow/launch 2 -m stages.pretrain ...`. The run directory is
TRAIN_DIR/<digest of recipe and corpus>; it holds checkpoints/, metrics.jsonl, events.jsonl and the lease. Start the
same command again after any kill: it goes on from the newest complete checkpoint. To really retrain, delete the
directory.
"""

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from stages.lib import checkpoint, files, journal, manifest, parallel, recipe, stage
from stages.lib.corpus import Corpus
from stages.lib.errors import UserError
from stages.lib.lease import Lease
from stages.lib.loader import Samples
from stages.lib.log import logger
from stages.lib.model import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.training.heldout import Heldout
from stages.lib.training.recipe import TrainRecipe
from stages.lib.training.trainer import Trainer


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TrainRecipe):
    """A pretraining run."""

    model: ModelRecipe = identity()
    """The shape of the model."""

    weights: dict[str, float] = identity(above=0)
    """How much of the tokens each source gives, by its name; any positive numbers, rounded to 1/4096 of their sum."""

    def check(self, where):
        """Raise UserError where the model declares fewer positions than a sample has tokens."""
        if self.seq_len > self.model.max_positions:
            raise UserError(
                f"{where}.seq_len must be at most model.max_positions ({self.model.max_positions}), got {self.seq_len}"
            )


def run(arguments, plan):
    """Train up to the milestone, and write its manifest."""
    clock = manifest.Clock(arguments.code)
    if arguments.until < 1:
        raise UserError(f"--until must be at least 1, got {arguments.until}")
    if arguments.until > plan.steps:
        raise UserError(f"--until must be at most pretrain.steps ({plan.steps}), got {arguments.until}")
    with parallel.ranks() as device:
        with parallel.agreeing():
            corpus = Corpus(arguments.corpus)
            facts = {
                "recipe": recipe.written(plan, "identity"),
                "corpus": corpus.digest,
                "tokenizer": corpus.tokenizer["digest"],
                "vocabulary": corpus.tokenizer["vocabulary"],
            }
            _check_previous(arguments.previous, facts)
        digest = manifest.digest_of({key: facts[key] for key in ("recipe", "corpus")})
        directory = arguments.train_dir / digest[:16]
        finished = _finished(checkpoint.directory_of(directory, arguments.until) / checkpoint.MILESTONE)
        if finished:
            if dist.get_rank() == 0:
                message = "step %s was reached before: only its manifest is written; to really retrain, delete %s"
                logger.warning(message, arguments.until, directory)
        else:
            finished = _train(arguments, plan, corpus, directory, facts, device, clock)
        with parallel.agreeing():
            if dist.get_rank() == 0:
                files.write_json(arguments.output, finished)


def _train(arguments, plan, corpus, directory, facts, device, clock):
    """Train; returns what the milestone's manifest says, which is kept beside its checkpoint (None but on rank 0)."""
    with parallel.agreeing():
        plan.check_ranks(dist.get_world_size(), "pretrain")
        samples = Samples(corpus, plan.weights, plan.seq_len, plan.seed)
        heldout = Heldout(corpus, samples.mixture.sources, plan.seq_len, plan.heldout.tokens)
    content = None
    with _lease(directory) as lease:
        trainer = Trainer(plan, plan.model, samples, heldout, directory, facts, device, lease)
        try:
            trainer.start(arguments.until)
            trainer.train(arguments.until)
            scores = trainer.evaluate()
            with parallel.agreeing():
                if dist.get_rank() == 0:
                    record = clock.record(
                        horizon={"steps": plan.steps},
                        run_directory=os.path.relpath(directory, arguments.output.parent),
                        heldout=scores,
                        world_size=dist.get_world_size(),
                    )
                    content = {"identity": _identity(arguments, plan, directory, facts), "record": record}
                    lease.check()
                    files.write_json(
                        checkpoint.directory_of(directory, arguments.until) / checkpoint.MILESTONE, content
                    )
            trainer.event("finish")
        except BaseException as error:
            with contextlib.suppress(UserError):  # what cannot be written must not hide why the run stops
                trainer.event("stop", reason=f"{type(error).__name__}: {error}")
            raise
    return content


def _identity(arguments, plan, directory, facts):
    saved = checkpoint.directory_of(directory, arguments.until)
    commit = checkpoint.read_commit(saved)
    relative = os.path.relpath(saved, arguments.output.parent)
    outputs = dict(commit["files"]) | {checkpoint.COMMIT: manifest.describe(saved / checkpoint.COMMIT)}
    samples = arguments.until * plan.global_batch
    return {
        "recipe": facts["recipe"],
        "corpus": facts["corpus"],
        "tokenizer": facts["tokenizer"],
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
            commit, content = checkpoint.read_commit(kept.parent), files.read_json(kept)
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is torn: %s", error)
    commit, content = parallel.from_first((commit, content))
    if content is None:
        return None
    try:
        with parallel.agreeing():
            checkpoint.verify(kept.parent, commit, dist.get_rank(), dist.get_world_size())
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is damaged: %s", error)
        return None
    return content


def _check_previous(path, facts):
    if path is None:
        return
    previous = manifest.read(path).identity
    if any(previous.get(key) != facts[key] for key in ("recipe", "corpus")):
        raise UserError(f"--previous {path} must be a milestone of the same recipe and corpus, and is not")


@contextlib.contextmanager
def _lease(directory):
    """Hold the lease on the run directory: the first rank gets it, the others None; a refusal stops all ranks alike."""
    lease = None
    try:
        with parallel.agreeing():
            if dist.get_rank() == 0:
                _make(directory)
                lease = Lease(directory)
                for name in ("metrics.jsonl", "events.jsonl"):
                    journal.mend(directory / name)
        yield lease
    finally:
        if lease:
            lease.release()


def _make(directory):
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"--train-dir {directory.parent} must be a directory that can be written: {error.strerror}"
        ) from None


def main(argv=None):
    """The command line."""
    parser = stage.parser("pretrain", __doc__, PretrainRecipe)
    parser.add_argument("--corpus", type=Path, required=True, help="manifest of the corpus")
    parser.add_argument("--until", type=int, required=True, help="step of the milestone to reach")
    parser.add_argument("--previous", type=Path, help="manifest of the milestone before")
    parser.add_argument("--train-dir", type=Path, required=True, help="where run directories lie")
    parser.add_argument(
        "--operation", default="{}", metavar="JSON|FILE", help="more recipe keys, that change no result"
    )
    parser.add_argument("--output", type=Path, required=True, help="manifest of the milestone")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
