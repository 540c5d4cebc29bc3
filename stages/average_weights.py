"""Average the weights of the last milestones of a run: a model like any other, which is exported, checked and scored.

    python -m stages.average_weights --models results/runs/base/models/00000{200,250,300}.json \\
        --recipe '{"num_milestones": 3}' --directory results/runs/mean/average \\
        --output results/runs/mean/models/00000300.json

While the learning rate is high, the mean of neighbouring checkpoints is better than each of them (arXiv 2306.03241).
Each tensor is averaged in float64 and rounded once to its dtype; of a run with LoRA these are the weights with the
adapters added. The checkpoint lies in DIR/checkpoints, and has no state of an optimizer. The manifest is that of the
last milestone with this stage's recipe beside the training's, so that data and curves of the model's card are those of
the training. Memory does not grow with the number of layers: one tensor is computed at a time.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib import files, manifest, stage
from stages.lib import recipe as recipes
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import ModelManifest
from stages.lib.manifest_types import ModelIdentity, ModelRecord
from stages.lib.recipe import identity
from stages.lib.run_directory import history
from stages.lib.run_directory.run_identity import OWNER_KEYS

if TYPE_CHECKING:
    import torch

AT_ONCE = 1 << 24
"""Elements of a tensor that are averaged at a time: an embedding in float64 may not fit the memory of a job."""


@dataclass(frozen=True, kw_only=True)
class AverageWeightsRecipe:
    """The milestones whose weights are averaged."""

    num_milestones: int = identity(minimum=2)
    """Number of milestones of the initial run, up to `initial.step`, whose weights are averaged."""


def read_models(paths: Sequence[Path], recipe: AverageWeightsRecipe) -> list[ModelManifest]:
    """Return the milestones, by step. Raises UserError unless they are as many milestones of one training."""
    if len(paths) != recipe.num_milestones:
        raise UserError(f"--models must name num_milestones ({recipe.num_milestones}) manifests, got {len(paths)}")
    models = sorted((manifest.read(path, *manifest.TRAINING) for path in paths), key=lambda one: one.identity["step"])
    last, steps = models[-1], [model.identity["step"] for model in models]
    if len(set(steps)) < len(steps):
        raise UserError(f"--models must be milestones of different steps, got the steps {', '.join(map(str, steps))}")
    for model in models:
        facts = [{"stage": one.stage, **one.identity} for one in (model, last)]
        for key in ("stage", *OWNER_KEYS):
            if facts[0].get(key) != facts[1].get(key):
                raise UserError(
                    f"--models must be milestones of one run, and {model.path} has another {key} than {last.path}"
                )
    return models


def mean_weights(
    checkpoints: Sequence[Path], base: Path | None
) -> tuple[dict[str, torch.Tensor], Callable[[str], torch.Tensor]]:
    """Return {FMS key: tensor on the meta device} of the mean of checkpoints of one model, and a function that computes
    the tensor of a key, in the dtype of the checkpoints."""
    import torch

    from stages.lib.checkpoints import find_model
    from stages.lib.model import key_table
    from stages.lib.model.key_table import Weight

    found = find_model.find(checkpoints[-1], base=base)
    table = key_table.build(found.model_config, found.vocab_size)
    readers = [find_model.read_weights(checkpoint, True, base)[0] for checkpoint in checkpoints]

    def compute(key: str) -> torch.Tensor:
        name = table.by_key[key].key  # a tied head has the embedding
        tensors = [read([name])[name] for read in readers]
        mean = torch.empty_like(tensors[0], memory_format=torch.contiguous_format)
        rows = (tensor.reshape(-1).split(AT_ONCE) for tensor in (mean, *tensors))
        for part, *parts in zip(*rows, strict=True):
            part.copy_(sum(one.to(torch.float64) for one in parts) / len(parts))
        return mean

    def described(weight: Weight) -> torch.Tensor:
        dtype = readers[-1]([weight.key])[weight.key].dtype
        return torch.empty(weight.shape, dtype=dtype, device="meta")

    return {key: described(weight) for key, weight in table.by_key.items()}, compute


def run(arguments: argparse.Namespace, recipe: AverageWeightsRecipe) -> None:
    """Check the milestones, write the checkpoint of the mean and, last, the manifest."""
    from stages.lib.checkpoints import dcp
    from stages.lib.checkpoints.commit import COMMIT, clear_leftovers, directory_of, read_commit, verify
    from stages.lib.distributed.process_group import process_group

    clock = manifest.Clock(arguments.code)
    files.clear_leftovers(arguments.output)
    models = read_models(arguments.models, recipe)
    last, home = models[-1], arguments.output.parent
    checkpoints = [model.directory / model.identity["checkpoint"] for model in models]
    digests = {f"{model.identity['step']:08d}": model.digest for model in models}
    own = {arguments.stage_name: recipes.written(recipe, "identity")}
    checkpoint = directory_of(arguments.directory, last.identity["step"])
    if checkpoint.resolve() in [one.resolve() for one in checkpoints]:
        raise UserError(f"--directory {arguments.directory} has a milestone that is averaged; name another directory")
    if arguments.output.resolve() in [path.resolve() for path in arguments.models]:
        raise UserError(f"--output {arguments.output} is one of --models; name another file")
    commits = [read_commit(averaged) for averaged in checkpoints]
    for averaged, commit in zip(checkpoints, commits, strict=True):
        verify(averaged, commit)
    facts = {key: value for key, value in commits[-1].items() if key not in ("format", "files", "adapter")}
    facts["averaged"] = digests
    clear_leftovers(arguments.directory)
    tensors, compute = mean_weights(checkpoints, arguments.base)
    with process_group():
        dcp.save(checkpoint, {"model": tensors}, facts, compute=lambda key: compute(key.removeprefix("model.")))
    logger.info("mean of the steps %s", ", ".join(name.lstrip("0") for name in digests))
    relative = os.path.relpath(checkpoint, home)
    outputs = read_commit(checkpoint)["files"] | {COMMIT: manifest.describe(checkpoint / COMMIT)}
    known: ModelIdentity = {
        **last.identity,
        "recipe": {**last.identity["recipe"], **own},
        "models": digests,
        "checkpoint": relative,
        "outputs": {f"{relative}/{name}": outputs[name] for name in sorted(outputs)},
    }
    run_directory = last.directory / last.record["run_directory"]
    record: ModelRecord = {
        **last.record,
        **clock.record(),
        "run_directory": os.path.relpath(run_directory, home),
        "validation": {},
        "logs": manifest.described(history.logs(run_directory), home),
    }
    manifest.write(arguments.output, arguments.stage_name, known, record)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the stage; return its exit code."""
    parser = stage.parser("stages.average_weights", __doc__, AverageWeightsRecipe)
    add = parser.add_argument
    add("--models", type=Path, nargs="+", required=True, metavar="MANIFEST", help="the milestones to average")
    add("--directory", type=Path, required=True, metavar="DIR", help="directory of the checkpoint to write")
    add("--output", type=Path, required=True, metavar="MANIFEST", help="the model's manifest to write")
    add("--base", type=Path, metavar="MODEL", help="the base of LoRA's adapters, if it was moved")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
