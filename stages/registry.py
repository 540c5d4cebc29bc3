"""The stages, each declared once: recipe, inputs, and where its manifest lies below the results directory.

The rules of the workflow, the check before each plan (`tools.check`), the walk from scores to raw files
(`tools.verify --chain`) and the schema of the config derive from STAGES, which has the order in which stages are run;
a source that a classifier filters is listed after the classifier.
Nothing here imports a stage before `Stage.recipe_type` needs its recipe, and no module of a recipe imports torch.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, kw_only=True)
class Stage:
    """The declaration of a stage. A rule has its name, its output and its wildcards."""

    name: str = field(kw_only=False)
    """The name of the rule."""

    output: str
    """Path of the manifest below the results directory, with the wildcards of the rule in braces."""

    makes: str
    """Name of what the manifest describes, in a word."""

    module: str = ""
    """The module that the rule runs; "" for `stages.` and the name."""

    recipe: str = ""
    """The class of the recipe, as `module:Class` if it is of another module; "" for a stage without one."""

    config: str = ""
    """The dotted key of the config that has the recipe, with the rule's wildcards in braces."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    """{key of the manifest's identity: what the manifest describes whose digest it has}. A key may have one digest, a
    mapping with the key `digest`, or a mapping of names to digests."""

    follows_code: bool = False
    """Rerun if the stage's code changes. Others do so only with `rerun_on_code`: pretraining depends on them."""

    def __post_init__(self) -> None:
        """Fill in the module."""
        object.__setattr__(self, "module", self.module or f"stages.{self.name}")

    @functools.cached_property
    def recipe_type(self) -> type | None:
        """The class of the recipe; None without one."""
        module, _, name = self.recipe.rpartition(":")
        return getattr(importlib.import_module(module or self.module), name) if name else None

    @functools.cached_property
    def path(self) -> re.Pattern[str]:
        """The pattern of the output's path, with a group for each wildcard."""
        return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.output)))

    @property
    def pattern(self) -> str:
        """The output as a pattern for `Path.glob`."""
        return re.sub(r"\{\w+\}", "*", self.output)


STAGES = {
    stage.name: stage
    for stage in (
        Stage(
            "list",
            output="sources/{source}/list.json",
            makes="list",
            recipe="stages.lib.sources.source:SourceRecipe",
            config="sources.{source}",
            inputs={"classifier": "classifier"},
        ),
        Stage(
            "train_classifier",
            output="classifiers/{classifier}/manifest.json",
            makes="classifier",
            recipe="ClassifierRecipe",
            config="classifiers.{classifier}",
        ),
        Stage(
            "train_tokenizer",
            output="tokenizers/{tokenizer}/manifest.json",
            makes="tokenizer",
            recipe="TokenizerRecipe",
            config="tokenizers.{tokenizer}",
        ),
        Stage("hash_documents", output="hashes/{corpus}/{source}/{part}.json", makes="hashes"),
        Stage("find_duplicates", output="hashes/{corpus}/manifest.json", makes="duplicates"),
        Stage(
            "sketch",
            output="sketches/{corpus}/{source}/{part}.json",
            makes="sketches",
            recipe="stages.lib.sources.near_duplicates:SketchRecipe",
            config="corpora.{corpus}.near_duplicates.sketch",
        ),
        Stage("find_candidates", output="near_duplicates/{corpus}/candidates.json", makes="candidates"),
        Stage("copy_candidates", output="near_duplicates/{corpus}/{source}/{part}.json", makes="copies"),
        Stage(
            "verify_duplicates",
            output="near_duplicates/{corpus}/manifest.json",
            makes="near duplicates",
            recipe="stages.lib.sources.near_duplicates:NearDuplicatesRecipe",
            config="corpora.{corpus}.near_duplicates",
            inputs={"candidates": "candidates", "duplicates": "duplicates"},
        ),
        Stage(
            "list_items",
            output="suites/{suite}/items.json",
            makes="items",
            recipe="ItemsRecipe",
            config="suites.{suite}.items",
        ),
        Stage(
            "tokenize",
            output="tokens/{corpus}/{source}/{part}.json",
            makes="part",
            recipe="TokenizeRecipe",
            config="corpora.{corpus}.tokenize",
            inputs={"tokenizer": "tokenizer", "decontaminate": "items"},
        ),
        Stage("index", output="tokens/{corpus}/manifest.json", makes="corpus", inputs={"tokenizer": "tokenizer"}),
        Stage(
            "find_overlaps",
            output="overlaps/{corpus}/{suite}/{source}/{part}.json",
            makes="overlaps",
            recipe="stages.find_contamination:ContaminationRecipe",
            config="contamination",
            inputs={"tokenizer": "tokenizer", "items": "items"},
        ),
        Stage(
            "find_contamination",
            output="contamination/{corpus}/{suite}.json",
            makes="contamination",
            recipe="ContaminationRecipe",
            config="contamination",
            inputs={"corpus": "corpus", "items": "items"},
            follows_code=True,
        ),
        Stage(
            "pretrain",
            output="runs/{run}/models/{step}.json",
            makes="model",
            recipe="PretrainRecipe",
            config="runs.{run}.pretrain",
            inputs={"corpus": "corpus", "tokenizer": "tokenizer"},
        ),
        Stage(
            "finetune",
            output="runs/{run}/models/{step}.json",
            makes="model",
            recipe="FinetuneRecipe",
            config="runs.{run}.finetune",
            inputs={"corpus": "corpus", "tokenizer": "tokenizer"},
        ),
        Stage(
            "average_weights",
            output="runs/{run}/models/{step}.json",
            makes="model",
            recipe="AverageWeightsRecipe",
            config="runs.{run}.average_weights",
            inputs={"models": "model", "corpus": "corpus", "tokenizer": "tokenizer"},
            follows_code=True,
        ),
        Stage(
            "predict",
            output="ladders/{ladder}.json",
            makes="prediction",
            recipe="PredictRecipe",
            config="ladders.{ladder}",
            inputs={"models": "model", "corpus": "corpus"},
            follows_code=True,
        ),
        Stage(
            "convert",
            output="runs/{run}/export/{step}/manifest.json",
            makes="export",
            recipe="ConvertRecipe",
            config="runs.{run}.convert",
            inputs={"model": "model", "corpus": "corpus", "tokenizer": "tokenizer"},
            follows_code=True,
        ),
        Stage(
            "evaluate_baseline",
            output="baselines/{baseline}/{corpus}/{suite}.json",
            makes="baseline",
            module="stages.evaluate",
            recipe="EvaluateRecipe",
            config="suites.{suite}",
            inputs={"corpus": "corpus"},
            follows_code=True,
        ),
        Stage(
            "evaluate",
            output="runs/{run}/eval/{step}/{suite}.json",
            makes="evaluation",
            recipe="EvaluateRecipe",
            config="suites.{suite}",
            inputs={"export": "export", "corpus": "corpus"},
            follows_code=True,
        ),
        Stage(
            "select_best",
            output="sweeps/{sweep}/best.json",
            makes="best run",
            recipe="BestRecipe",
            config="sweeps.{sweep}.best",
            inputs={"model": "model"},
        ),
        Stage(
            "describe",
            output="runs/{run}/export/{step}/card.json",
            makes="card",
            recipe="DescribeRecipe",
            config="runs.{run}.card",
            inputs={
                "export": "export",
                "evaluations": "evaluation",
                "baselines": "baseline",
                "contamination": "contamination",
                "lists": "list",
                "model": "model",
                "corpus": "corpus",
            },
            follows_code=True,
        ),
        Stage("summarize", output="summary.json", makes="summary", follows_code=True),
    )
}
"""{rule: its stage}, so that each is made from those before it"""


def producer(path: str) -> tuple[str, dict[str, str]] | None:
    """Return the rule that makes a manifest, and the wildcards of its path below the results directory.

    None for a file that is no stage's manifest. For the manifest of a training, which two rules make, that is pretrain.
    """
    for rule, stage in STAGES.items():
        if found := stage.path.fullmatch(path):
            return rule, found.groupdict()
    return None
