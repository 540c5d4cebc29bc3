"""The stages, each declared once: recipe, inputs, and where its manifest lies below the results directory.

The rules of the workflow, the check before each plan (`tools.check`), the walk from scores to raw files
(`tools.verify --chain`) and the schema of the config derive from STAGES, which has the order in which stages are run.
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

    output: str
    """Path of the manifest below the results directory, with the wildcards of the rule in braces."""

    makes: str
    """What the manifest describes, in a word."""

    module: str
    """The module that the rule runs."""

    recipe: str = ""
    """`module:Class` of the recipe; "" for a stage without one."""

    config: str = ""
    """The dotted key of the config that has the recipe, with the rule's wildcards in braces."""

    inputs: Mapping[str, str] = field(default_factory=dict)
    """{key of the manifest's identity: what the manifest describes whose digest it has}. A key may have one digest, a
    mapping with the key `digest`, or a mapping of names to digests."""

    follows_code: bool = False
    """Rerun if the stage's code changes. Others do so only with `rerun_on_code`: pretraining depends on them."""

    @functools.cached_property
    def recipe_type(self) -> type | None:
        """The class of the recipe. None without one, or if its packages are installed only where jobs run."""
        module, _, name = self.recipe.partition(":")
        try:
            return getattr(importlib.import_module(module), name) if module else None
        except ImportError:
            return None

    @functools.cached_property
    def path(self) -> re.Pattern[str]:
        """The pattern of the output's path, with a group for each wildcard."""
        return re.compile(re.sub(r"\\\{(\w+)\\\}", r"(?P<\1>[^/]+)", re.escape(self.output)))

    @property
    def pattern(self) -> str:
        """The output as a pattern for `Path.glob`."""
        return re.sub(r"\{\w+\}", "*", self.output)


STAGES = {
    "list": Stage(
        output="sources/{source}/list.json",
        makes="list",
        module="stages.list",
        recipe="stages.lib.sources.source:SourceRecipe",
        config="sources.{source}",
    ),
    "train_tokenizer": Stage(
        output="tokenizers/{tokenizer}/manifest.json",
        makes="tokenizer",
        module="stages.train_tokenizer",
        recipe="stages.train_tokenizer:TokenizerRecipe",
        config="tokenizers.{tokenizer}",
    ),
    "hash_documents": Stage(
        output="hashes/{corpus}/{source}/{part}.json",
        makes="hashes",
        module="stages.hash_documents",
    ),
    "find_duplicates": Stage(
        output="hashes/{corpus}/manifest.json",
        makes="duplicates",
        module="stages.find_duplicates",
    ),
    "list_items": Stage(
        output="suites/{suite}/items.json",
        makes="items",
        module="stages.list_items",
        recipe="stages.list_items:ItemsRecipe",
        config="suites.{suite}.items",
    ),
    "tokenize": Stage(
        output="tokens/{corpus}/{source}/{part}.json",
        makes="part",
        module="stages.tokenize",
        recipe="stages.tokenize:TokenizeRecipe",
        config="corpora.{corpus}.tokenize",
        inputs={"tokenizer": "tokenizer", "decontaminate": "items"},
    ),
    "index": Stage(
        output="tokens/{corpus}/manifest.json",
        makes="corpus",
        module="stages.index",
        inputs={"tokenizer": "tokenizer"},
    ),
    "find_overlaps": Stage(
        output="overlaps/{corpus}/{suite}/{source}/{part}.json",
        makes="overlaps",
        module="stages.find_overlaps",
        recipe="stages.find_contamination:ContaminationRecipe",
        config="contamination",
        inputs={"tokenizer": "tokenizer", "items": "items"},
    ),
    "find_contamination": Stage(
        output="contamination/{corpus}/{suite}.json",
        makes="contamination",
        module="stages.find_contamination",
        recipe="stages.find_contamination:ContaminationRecipe",
        config="contamination",
        inputs={"corpus": "corpus", "items": "items"},
        follows_code=True,
    ),
    "pretrain": Stage(
        output="runs/{run}/models/{step}.json",
        makes="model",
        module="stages.pretrain",
        recipe="stages.pretrain:PretrainRecipe",
        config="runs.{run}.pretrain",
        inputs={"corpus": "corpus", "tokenizer": "tokenizer"},
    ),
    "finetune": Stage(
        output="runs/{run}/models/{step}.json",
        makes="model",
        module="stages.finetune",
        recipe="stages.finetune:FinetuneRecipe",
        config="runs.{run}.finetune",
        inputs={"corpus": "corpus", "tokenizer": "tokenizer"},
    ),
    "predict": Stage(
        output="ladders/{ladder}.json",
        makes="prediction",
        module="stages.predict",
        recipe="stages.predict:PredictRecipe",
        config="ladders.{ladder}",
        inputs={"models": "model", "corpus": "corpus"},
        follows_code=True,
    ),
    "convert": Stage(
        output="runs/{run}/export/{step}/manifest.json",
        makes="export",
        module="stages.convert",
        recipe="stages.convert:ConvertRecipe",
        config="runs.{run}.convert",
        inputs={"model": "model", "corpus": "corpus", "tokenizer": "tokenizer"},
        follows_code=True,
    ),
    "evaluate_baseline": Stage(
        output="baselines/{baseline}/{corpus}/{suite}.json",
        makes="baseline",
        module="stages.evaluate",
        recipe="stages.evaluate:EvaluateRecipe",
        config="suites.{suite}",
        inputs={"corpus": "corpus"},
        follows_code=True,
    ),
    "evaluate": Stage(
        output="runs/{run}/eval/{step}/{suite}.json",
        makes="evaluation",
        module="stages.evaluate",
        recipe="stages.evaluate:EvaluateRecipe",
        config="suites.{suite}",
        inputs={"export": "export", "corpus": "corpus"},
        follows_code=True,
    ),
    "select_best": Stage(
        output="sweeps/{sweep}/best.json",
        makes="best run",
        module="stages.select_best",
        recipe="stages.select_best:BestRecipe",
        config="sweeps.{sweep}.best",
        inputs={"model": "model"},
    ),
    "describe": Stage(
        output="runs/{run}/export/{step}/card.json",
        makes="card",
        module="stages.describe",
        recipe="stages.describe:DescribeRecipe",
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
    "summarize": Stage(
        output="summary.json",
        makes="summary",
        module="stages.summarize",
        follows_code=True,
    ),
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
