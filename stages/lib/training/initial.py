"""Training that starts from the weights of another model; the recipe says what else it takes from it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stages.lib import files
from stages.lib.checkpoints import adapter, dcp, find_model, model_files
from stages.lib.errors import UserError
from stages.lib.huggingface import config_json, load_hf
from stages.lib.log import logger
from stages.lib.tokenizer.tokenizer import PACKAGE, package_encoder
from stages.lib.tokens import loader
from stages.lib.tokens.corpus import compared_documents
from stages.lib.training.optimizers.recipe import DEFAULT_OPTIMIZER
from stages.lib.training.settings.recipe import InitialRecipe

if TYPE_CHECKING:
    from stages.lib.model.model_recipe import ModelRecipe
    from stages.lib.model.transformer import Transformer
    from stages.lib.tokens.corpus import Corpus

FREE = ("max_position_embeddings", "initializer_range")
"""Fields of a model's recipe on which no weight depends."""


RESET = InitialRecipe(optimizer="reset", schedule="reset", data="reset")


class Initial:
    """The model whose weights a training starts from.

    `steps_before`, `samples_before`: the position in schedule and data at which it starts.
    """

    def __init__(
        self,
        path: Path,
        recipe: InitialRecipe,
        model_config: ModelRecipe | None,
        *,
        corpus: Corpus,
        where: str,
        config: Path | None = None,
    ) -> None:
        """Find the model. Raises UserError if it does not fit.

        `model_config`: the model's recipe must be this one; None for any, see `found.model_config`. `corpus`: of the
        data's tokenizer. `where`: name of the stage. `config`: the config.json of a model that does not hold it; with
        `model_config` none is needed.
        """
        self.recipe, self.path, self.config = recipe, path, config
        self.found = self._find(model_config, where)
        self.commit = self.found.commit
        if model_config is not None:
            self._check_model(model_config, where)
        vocab_size, rows = corpus.tokenizer["vocab_size"], self.found.vocab_size
        is_other = self.found.tokenizer not in (None, corpus.tokenizer["digest"])
        if rows < vocab_size or (is_other and rows != vocab_size):
            raise UserError(
                f"--initial {self.path} must have the vocab_size of the data's tokenizer ({vocab_size}), got {rows}"
            )
        if rows > vocab_size:  # padding, as published models have it
            logger.info("--initial has %s rows for the %s ids of the tokenizer; the others stay", rows, vocab_size)
        if is_other:
            raise UserError(f"--initial {self.path} was trained with a different tokenizer than this corpus")
        if self.commit is None:
            for key, value in dataclasses.asdict(recipe).items():
                if value != "reset":
                    raise UserError(f"{where}.initial.{key} must be reset for a {self.found.kind}, got {value}")
        if self.found.adapter is not None and recipe.optimizer == "keep":
            raise UserError(f"{where}.initial.optimizer must be reset for a model that LoRA trained, got keep")
        if self.found.tokenizer is None:
            self._compare_tokens(corpus)
        commit = self.commit or {}
        if "averaged" in commit and recipe.optimizer == "keep":
            raise UserError(f"{where}.initial.optimizer must be reset for averaged weights, which have none, got keep")
        self.steps_before = 0 if recipe.schedule == "reset" else commit["step"] + commit.get("steps_before", 0)
        self.samples_before = 0 if recipe.data == "reset" else commit["samples"]

    @functools.cached_property
    def digest(self) -> str:
        """Digest of the model. It is slow for a model that was not trained here: every file is read."""
        return model_files.digest_of(self.found.path, "--initial", config=self.config)

    def _find(self, model_config: ModelRecipe | None, where: str) -> find_model.FoundModel:
        if self.config is None:
            return find_model.find(self.path, "--initial", model_config, f"{where}.model.")
        given, vocab_size = config_json.read_config(files.read_json(self.config), self.config)
        found = find_model.find(self.path, "--initial", given, f"{self.config}: ")
        if found.vocab_size != vocab_size:
            raise UserError(
                f"{self.config}: vocab_size is {vocab_size}, but {found.vocab_size} in --initial {self.path}"
            )
        return found

    def _commit(self) -> dict[str, Any]:
        assert self.commit is not None
        return self.commit

    def _check_model(self, model_config: ModelRecipe, where: str) -> None:
        for field in dataclasses.fields(model_config):
            value, found = getattr(model_config, field.name), getattr(self.found.model_config, field.name)
            if field.name == "num_key_value_heads":
                value, found = model_config.kv_heads, self.found.model_config.kv_heads
            if field.name not in FREE and value != found:
                raise UserError(f"{where}.model.{field.name} is {value}, but {found} in --initial {self.path}")

    def _compare_tokens(self, corpus: Corpus) -> None:
        """Compare the ids that the tokenizer beside imported weights gives with those of the corpus.

        Raises UserError naming the first text that differs. Logs a warning if there is nothing to compare.
        """
        package = self.found.directory / PACKAGE[0]
        if not package.is_file():
            reason = f"no {package.name} lies beside its weights"
        else:
            encode, compared = package_encoder(package), 0
            for source, name, text, is_same in compared_documents(corpus, lambda texts, _: encode(texts)):
                if not is_same:
                    raise UserError(
                        f"--initial {self.path} was trained with a different tokenizer than this corpus: {package} "
                        f"gives other token ids for the validation document {name} of {source}, which begins "
                        f"{text[:60]!r}; name it as the path of the corpus' tokenizer"
                    )
                compared += 1
            if compared:
                logger.info("%s gives the token ids of the corpus for %s documents", package, compared)
                return
            reason = "the corpus has no validation text that was encoded here"
        logger.warning(
            "the tokenizer of --initial %s could not be compared with that of the data: %s", self.path, reason
        )

    def check_optimizer(self, name: str, where: str) -> None:
        """Raise UserError if the state of the model's optimizer cannot be that of the optimizer `name`."""
        if self.recipe.optimizer == "keep":
            before = self._commit()["recipe"].get("optimizer", {}).get("name", DEFAULT_OPTIMIZER)
            if before != name:
                raise UserError(
                    f"{where}.initial.optimizer cannot be kept: --initial {self.path} was trained with the "
                    f"optimizer {before}, and {where}.optimizer.name is {name}; set it to reset"
                )

    def check_data(self, run_order: loader.Order, corpus: Corpus, where: str) -> None:
        """Raise UserError if the samples cannot continue in the order of the model's own training.

        `run_order`: the order by the recipe alone, as if nothing came before.
        """
        commit = self._commit()
        if "weights" not in commit["recipe"]:
            raise UserError(
                f"{where}.initial.data must be reset for a model that was not pretrained (--initial {self.path}), "
                "got continue"
            )
        before = loader.from_commit(commit)
        other = run_order.difference(before, corpus)
        if other is None and before.sources is None and commit["corpus"] != corpus.digest:
            other = "corpus"
        if other is not None:
            raise UserError(
                f"{where}.initial.data cannot continue: --initial {self.path} was trained with a different {other}; "
                "set it to reset"
            )

    def load(self, model: Transformer, optimizer_state: dict[str, dict[str, torch.Tensor]]) -> None:
        """Fill a model, sharded or whole, and with `optimizer: keep` the optimizer's state; all ranks call it."""
        if self.commit is None or self.found.adapter is not None:
            load_hf.load_into(model.named_parameters(), self.found.read)
            return
        tensors: dict[str, Any] = {"model": model.state_dict()}
        if self.recipe.optimizer == "keep":
            tensors["optimizer"] = optimizer_state
        dcp.load(self.found.directory, tensors)

    def load_frozen(self, parameters: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Fill the parameters beside which adapters are trained, (FMS key, tensor), sharded or whole."""
        load_hf.load_into(parameters, self.found.read)

    def record(self, run_directory: Path) -> None:
        """Write the path of the model into a run directory whose checkpoints hold only adapters."""
        adapter.record_base(run_directory, self.path, self.found.path, self.config)
