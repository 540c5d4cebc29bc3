"""Properties of a run by the config: how it is trained, on which corpus, and its milestones."""

from typing import Any

TRAINED_BY = ("pretrain", "finetune")


def training_of(run: dict[str, Any]) -> str:
    """Return the name of the section, and stage, that trains a run: pretrain or finetune."""
    return next(name for name in TRAINED_BY if name in run)


def milestones_of(run: dict[str, Any]) -> list[int]:
    """Return the steps, or epochs, after which a run is converted and scored, increasing."""
    recipe = run[training_of(run)]
    return recipe.get("milestones", [recipe[length_of(run)]])


def length_of(run: dict[str, Any]) -> str:
    """Return the key that says how long a run is trained, and that its milestones count: steps or epochs."""
    return "epochs" if "epochs" in run[training_of(run)] else "steps"


def file_name(run: dict[str, Any], milestone: int) -> str:
    """Return the name of a milestone in paths."""
    return f"epoch{milestone:03d}" if length_of(run) == "epochs" else f"{milestone:08d}"


def corpus_of(runs: dict[str, Any], name: str) -> str:
    """Return the name of a run's corpus; a tuned run has that of its initial run."""
    run = runs[name]
    return run["corpus"] if "corpus" in run else corpus_of(runs, run["initial"]["run"])


def tuned_runs(runs: dict[str, Any]) -> list[str]:
    """Return the names of the runs that are fine-tuned."""
    return [name for name, run in runs.items() if training_of(run) == "finetune"]
