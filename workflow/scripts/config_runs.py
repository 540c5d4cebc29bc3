"""What the config says of a run, as data: how it is trained, on which corpus, and which models it goes through."""

TRAINED_BY = ("pretrain", "finetune")


def training_of(run):
    """The name of the section, and stage, that trains a run: pretrain or finetune."""
    return next(name for name in TRAINED_BY if name in run)


def milestones_of(run):
    """The steps after which a run is converted and scored, increasing."""
    recipe = run[training_of(run)]
    return recipe.get("milestones", [recipe["steps"]])


def corpus_of(runs, name):
    """The name of a run's corpus; a tuned run has that of the run that it was tuned from."""
    run = runs[name]
    return run["corpus"] if "corpus" in run else corpus_of(runs, run["initial"]["run"])


def tuned_runs(runs):
    """The names of the runs that are fine-tuned."""
    return [name for name, run in runs.items() if training_of(run) == "finetune"]
