"""The request of a plan from a config as people write it, for `tools.plan CONFIG`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stages.lib.errors import UserError
from tools.ablate import setting

STAGES = ("pretrain", "finetune")
EXPANDED = ("sweeps", "ladders")
"""Sections from which only the workflow makes runs."""


def runs_of(path: Path, only: str | None, vocab_size: int | None, results: Path) -> dict[str, Any]:
    """Return the runs of a request, see `request.py`, without hardware. `only`: the name of one run.

    Raises UserError if the run is missing, or is not written in full.
    """
    config = setting.load(path)
    runs = config["runs"]
    if only is not None and only not in runs:
        raise UserError(f"--run must be one of the runs of {path} ({', '.join(map(str, runs))}), got {only!r}")
    for section in EXPANDED:
        if section in config:
            raise UserError(
                f"{path} has {section}, which only the workflow expands: "
                f"`snakemake --profile profiles/local plan --configfile {path}`"
            )
    return {name: _run(config, name, vocab_size, results) for name in ([only] if only else runs)}


def _run(config: dict[str, Any], name: str, vocab_size: int | None, results: Path) -> dict[str, Any]:
    run = config["runs"][name]
    stage = next((stage for stage in STAGES if isinstance(run, dict) and isinstance(run.get(stage), dict)), None)
    if stage is None:
        raise UserError(
            f"runs.{name} must have pretrain or finetune to be read without the workflow; "
            f"`snakemake --profile profiles/local plan --configfile FILE` reads every config"
        )
    keys = {key: value for key, value in run[stage].items() if key != "milestones"}
    model, own_size = setting.model_of(config, name)
    found: dict[str, Any] = {"stage": stage, "keys": keys, "model": model}
    found["milestones"] = run[stage].get("milestones", [keys["steps"]] if "steps" in keys else [])
    size = vocab_size or own_size or setting.tokenizer_size(config, name)
    if size is not None:
        found["vocab_size"] = size
    corpus = run.get("corpus")
    if isinstance(corpus, str):
        found["corpus"] = str(results / f"tokens/{corpus}/manifest.json")
        tokenizer = (config.get("corpora") or {}).get(corpus, {}).get("tokenizer")
        found["tokenizer"] = {"manifest": str(results / f"tokenizers/{tokenizer}/manifest.json")}
    return found
