"""Pretrain a Llama up to a milestone, from the newest checkpoint of its run directory.

    python -m stages.pretrain --corpus results/tokens/main/manifest.json --until 300 --recipe recipe.json \\
        --operation '{"steps": 300}' --train-dir results/runs/base/train --output results/runs/base/models/00000300.json

On several ranks the same, behind torchrun: `workflow/launch 2 -m stages.pretrain ...`. The run directory is
TRAIN_DIR/<digest of recipe and corpus>; it holds checkpoints/, metrics.jsonl, events.jsonl and the lease. Start the same
command again after any kill: it goes on from the newest complete checkpoint. To really retrain, delete the directory.
"""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import torch.distributed as dist

from stages.lib import checkpoint, files, journal, manifest, parallel, recipe, stage
from stages.lib.corpus import Corpus
from stages.lib.errors import UserError
from stages.lib.heldout import Heldout
from stages.lib.lease import Lease
from stages.lib.loader import Samples
from stages.lib.log import logger
from stages.lib.model import ModelRecipe
from stages.lib.recipe import identity
from stages.lib.trainer import Trainer, TrainRecipe


@dataclass(frozen=True, kw_only=True)
class PretrainRecipe(TrainRecipe):
    """A pretraining run."""

    model: ModelRecipe = identity()
    """The shape of the model."""

    weights: dict[str, float] = identity(minimum=0)
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
    if arguments.until > plan.steps:
        raise UserError(f"--until must be at most pretrain.steps ({plan.steps}), got {arguments.until}")
    corpus = Corpus(arguments.corpus)
    written = recipe.written(plan, "identity")
    directory = arguments.train_dir / manifest.digest_of({"recipe": written, "corpus": corpus.digest})[:16]
    _check_previous(arguments.previous, written, corpus)
    kept = checkpoint.directory_of(directory, arguments.until) / checkpoint.MILESTONE
    with parallel.ranks() as device:
        with parallel.agreeing():
            finished = _finished(kept)
        if finished:
            logger.info("step %s was reached before: the manifest is written anew", arguments.until)
        else:
            facts = {
                "recipe": written,
                "corpus": corpus.digest,
                "tokenizer": corpus.tokenizer["digest"],
                "vocabulary": corpus.tokenizer["vocabulary"],
            }
            finished = _train(arguments, plan, corpus, directory, facts, device, clock)
        if dist.get_rank() == 0:
            files.write_json(arguments.output, finished)


def _train(arguments, plan, corpus, directory, facts, device, clock):
    """Train; returns the content of the milestone's manifest, which is kept beside its checkpoint."""
    plan.check_ranks(dist.get_world_size(), "pretrain")
    samples = Samples(corpus, plan.weights, plan.seq_len, plan.seed)
    heldout = Heldout(corpus, samples.mixture.sources, plan.seq_len, plan.heldout.tokens)
    with _lease(directory) as lease:
        trainer = Trainer(plan, plan.model, samples, heldout, directory, facts, device, lease)
        try:
            trainer.start(arguments.until)
            trainer.train(arguments.until)
            scores = trainer.evaluate()
            record = clock.record(
                horizon={"steps": plan.steps},
                run_directory=os.path.relpath(directory, arguments.output.parent),
                heldout=scores,
                world_size=dist.get_world_size(),
            )
            content = {"identity": _identity(arguments, plan, directory, facts), "record": record}
            if dist.get_rank() == 0:
                lease.check()
                files.write_json(checkpoint.directory_of(directory, arguments.until) / checkpoint.MILESTONE, content)
            trainer.event("finish")
            return content
        except BaseException as error:
            trainer.event("stop", reason=f"{type(error).__name__}: {error}")
            raise


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
    """The milestone's manifest as it was first written, if its checkpoint is still complete."""
    if not kept.exists():
        return None
    try:
        checkpoint.read_commit(kept.parent)
    except UserError as error:
        logger.warning("the milestone was reached before, but its checkpoint is torn: %s", error)
        return None
    return files.read_json(kept)


def _check_previous(path, written, corpus):
    if path is None:
        return
    previous = manifest.read(path).identity
    if previous["recipe"] != written or previous["corpus"] != corpus.digest:
        raise UserError(f"--previous {path} must be a milestone of the same recipe and corpus, and is not")


class _lease:  # noqa: N801 - reads as a function
    """The lease on the run directory: held by the first rank, refused on all ranks alike."""

    def __init__(self, directory):
        self.directory = directory
        self.lease = None

    def __enter__(self):
        with parallel.agreeing():
            if dist.get_rank() == 0:
                _make(self.directory)
                self.lease = Lease(self.directory)
                for name in ("metrics.jsonl", "events.jsonl"):
                    journal.mend(self.directory / name)
        return self.lease

    def __exit__(self, *_):
        if self.lease:
            self.lease.release()


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
    sys.exit(main())
