"""The request for a plan: runs, ranks, the GPU and its price, as plain data. Imports no torch.

The workflow writes it as JSON, and `tools.plan CONFIG` makes the same from a config:

    {"results": "results", "runs": {"base": {
        "stage": "pretrain", "keys": {...}, "model": {...}, "milestones": [300], "tokenizer": {...},
        "corpus": "results/tokens/main/manifest.json", "hardware": {"ranks": 8, "nodes": 2, "device": "H100"}}}}
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.distributed import gpus
from stages.lib.errors import UserError
from stages.lib.huggingface import config_json
from stages.lib.recipe import Reader
from stages.lib.training.settings.recipe import RANKS_WITHOUT_GPUS, ranks_that_fit
from tools.plan import devices, subject
from tools.plan.bound import Ceilings
from tools.plan.devices import Device
from tools.plan.subject import Subject

AUTO = "auto"


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The hardware of a run, by the profile or by options."""

    ranks: int | str = 1
    """Ranks per node; `auto`: one per GPU of this machine, as far as they fit the batch."""

    nodes: int = 1
    device: str | None = None
    device_memory_gb: float | None = None
    device_peak_tflops: float | None = None
    copy_gb_per_second: float | None = None
    matrix_tflops: float | None = None
    """Measured ceilings, the keys of `benchmarks.gpu.ceilings`."""

    price: float | None = None
    """Price of one GPU for an hour, in any currency."""

    minutes: float | None = None
    """Time limit of a job."""

    mfu: float | None = None
    tokens_per_second: float | None = None
    """Tokens per second per GPU, in place of an MFU."""

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return int(self.ranks) * max(1, self.nodes)

    def gpu(self) -> Device | None:
        """Return the GPU; None if none is named. Raises UserError if it is not known."""
        gpu = devices.find(self.device, self.device_memory_gb, self.device_peak_tflops)
        if gpu is None or self.copy_gb_per_second is None or self.matrix_tflops is None:
            return gpu
        return dataclasses.replace(
            gpu, ceilings=Ceilings(self.copy_gb_per_second * 1e9, self.matrix_tflops * 1e12, "as given")
        )

    def check(self) -> None:
        """Raise UserError for a number that is not positive or not finite, or an MFU above 1."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, float) and not math.isfinite(value):
                raise UserError(f"{_option(field.name)} must be a finite number, got {value:g}")
            # nodes: 0 is this machine alone
            if isinstance(value, int | float) and ((value <= 0 and field.name != "nodes") or value < 0):
                raise UserError(f"{_option(field.name)} must be greater than 0, got {value:g}")
        if self.mfu is not None and self.tokens_per_second is not None:
            raise UserError("--mfu must be omitted with --tokens-per-second, which is the speed itself")
        if (self.copy_gb_per_second is None) != (self.matrix_tflops is None):
            raise UserError("--copy-gb-per-second and --matrix-tflops must be given together")
        if self.matrix_tflops is not None and self.device is None and self.device_memory_gb is None:
            raise UserError("--matrix-tflops needs --gpu, or --memory-gb: the GPU that it was measured on")
        if self.mfu is not None and self.mfu > 1:
            raise UserError(f"--mfu must be a share of the GPU's peak, at most 1, got {self.mfu:g}")


OPTIONS = {"device": "gpu", "device_memory_gb": "memory_gb", "device_peak_tflops": "peak_tflops", "minutes": "limit"}
"""{field of Hardware: option of tools.plan, if its name is another}"""


def _option(field: str) -> str:
    return "--" + OPTIONS.get(field, field).replace("_", "-")


@dataclass(frozen=True)
class Asked:
    """A run of a request, its keys checked."""

    name: str
    stage: str
    subject: Subject
    keys: dict[str, Any]
    milestones: list[int]
    corpus: Path | None
    hardware: Hardware


def read(name: str, run: Mapping[str, Any]) -> Asked | str:
    """Return a run of a request, or a sentence why no plan can be made of it yet. Raises UserError for a mistake."""
    hardware = Hardware(**run.get("hardware", {}))
    hardware.check()
    if (model := run.get("model")) is None:
        return "the model that it starts from does not exist yet"
    where = f"runs.{name}.{run['stage']}"
    keys = {key: value for key, value in model.items() if key != "from"}
    size = run.get("vocab_size")
    if "from" in model:
        keys = config_json.model_identity(model["from"], keys)
    tokenizer = run.get("tokenizer", {})
    path = Path(tokenizer.get("manifest", ""))
    if size is None:  # by the tokenizer's manifest if it exists, else by its recipe
        is_trained = path.is_file()
        identity = manifest.read(path, "train_tokenizer").identity if is_trained else tokenizer
        size = identity.get("vocab_size")
    if size is None and "from" in model:
        size = files.read_json_object(model["from"]).get("vocab_size")
    if size is None:
        return "the size of its vocabulary is not known before its tokenizer exists"
    recipe = subject.load(run["stage"], dict(run["keys"]), keys, size, where)
    if hardware.ranks == AUTO:
        most = gpus.count() or RANKS_WITHOUT_GPUS
        ranks = ranks_that_fit(recipe.global_batch_size, recipe.micro_batch_size, most)
        hardware = dataclasses.replace(hardware, ranks=ranks)
    planned = Subject(recipe, hardware.world_size, int(hardware.ranks), where)
    planned.check()
    corpus = Path(run["corpus"]) if "corpus" in run else None
    training = dict(run["keys"]) | {"global_batch_size": recipe.global_batch_size}  # it may have been auto
    # YAML reads `1e3` as text
    milestones = Reader().value(list[int], run.get("milestones", []), f"{where}.milestones", {"minimum": 1})
    return Asked(name, run["stage"], planned, training, milestones, corpus, hardware)
