"""Training on from another model: what is taken from it besides its weights is said, never guessed."""

import dataclasses
import functools
from dataclasses import dataclass

from stages.lib import manifest
from stages.lib.checkpoints import dcp, find_model
from stages.lib.errors import UserError
from stages.lib.huggingface import load_hf
from stages.lib.recipe import identity
from stages.lib.tokens import order

FREE = ("max_position_embeddings", "initializer_range")  # of a model's recipe: what no weight depends on


@dataclass(frozen=True, kw_only=True)
class InitialRecipe:
    """What is taken from the model that a training goes on from, besides its weights."""

    optimizer: str = identity(choices=("keep", "reset"))
    """keep: AdamW's averages. reset: they begin at zero."""

    schedule: str = identity(choices=("continue", "reset"))
    """continue: the learning rate goes on where it was, and `steps` are added to the steps before. reset: a new
    schedule of `steps` steps."""

    data: str = identity(choices=("continue", "reset"))
    """continue: from the first sample that was not seen. It needs the same seq_len, packing and seed, and a corpus that
    has all sources of before with the same text; weights may be others, and sources may be added. Each source goes on
    where it was, and a new one begins at its start. reset: from the first sample."""


RESET = InitialRecipe(optimizer="reset", schedule="reset", data="reset")


class Initial:
    """The model that a training goes on from.

    `shape`: the recipe that it must have; None for whatever it has, which `found.recipe` says. `facts`: what is known
    of the data. `steps_before`, `samples_before`: where schedule and data go on.
    """

    def __init__(self, path, recipe, shape, facts, where):
        self.recipe, self.path, self.found = recipe, path, find_model.find(path, "--initial")
        self.commit = self.found.commit
        if shape is not None:
            self._check_shape(path, shape, where)
        self._check_tokenizer(path, facts)
        if self.commit is None:
            for key, value in dataclasses.asdict(recipe).items():
                if value != "reset":
                    raise UserError(f"{where}.initial.{key} must be reset for a Hugging Face model, got {value}")
        self.steps_before = 0 if recipe.schedule == "reset" else self._steps()
        self.samples_before = 0 if recipe.data == "reset" else self.commit["samples"]

    @functools.cached_property
    def digest(self):
        """What the model is known by. It takes a while: of a Hugging Face model every file is read."""
        if self.commit is None:
            return load_hf.open_directory(self.found.directory).digest
        return manifest.digest_of(self.commit["files"])

    def _steps(self):
        return self.commit["step"] + self.commit.get("steps_before", 0)

    def _check_shape(self, path, shape, where):
        for field in dataclasses.fields(shape):
            wanted, found = getattr(shape, field.name), getattr(self.found.recipe, field.name)
            if field.name == "num_key_value_heads":
                wanted, found = shape.kv_heads, self.found.recipe.kv_heads
            if field.name not in FREE and wanted != found:
                raise UserError(f"{where}.model.{field.name} must be that of --initial {path} ({found}), got {wanted}")

    def _check_tokenizer(self, path, facts):
        if self.found.vocab_size != facts["vocab_size"]:
            raise UserError(
                f"--initial {path} has a vocabulary of {self.found.vocab_size}, and the tokenizer of the data has "
                f"{facts['vocabulary']}: they must be one"
            )
        if self.found.tokenizer not in (None, facts["tokenizer"]):
            raise UserError(f"--initial {path} was trained with another tokenizer than that of the data")

    def check_data(self, wanted, corpus, where):
        """Raise UserError where the samples cannot go on in the order that the model's own had.

        `wanted`: the order.Order that the recipe has without what was before. `corpus`: a Corpus.
        """
        if "weights" not in self.commit["recipe"]:
            raise UserError(f"{where}.initial.data must be reset, since --initial {self.path} is no pretraining")
        before = order.of_commit(self.commit)
        other = wanted.difference(before, corpus)
        if other is None and before.sources is None and self.commit["corpus"] != corpus.digest:
            other = "corpus"
        if other is not None:
            raise UserError(
                f"{where}.initial.data must be reset, since --initial {self.path} was trained with another {other}; "
                "got continue"
            )

    def load(self, model, moments):
        """Fill a model, sharded or whole, and with `optimizer: keep` the tensors `moments`; all ranks call it."""
        if self.commit is None:
            load_hf.load_into(model, self.found.read)
            return
        tensors = {"model": model.state_dict()}
        if self.recipe.optimizer == "keep":
            tensors["optimizer"] = moments
        dcp.load(self.found.directory, tensors)
