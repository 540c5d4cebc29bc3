"""Input functions of the rule that selects the best run of a sweep."""


def sweep_of(wildcards):
    """Return a sweep of the config that says what its best run is. WorkflowError if there is none of that name."""
    known = {name: sweep for name, sweep in CONFIG.get("sweeps", {}).items() if "best" in sweep}
    if wildcards.sweep not in known:
        raise WorkflowError(f"the config has no sweeps.{wildcards.sweep}.best; sweeps with best: {', '.join(known)}")
    return known[wildcards.sweep]


def last_step(run):
    """Return the name of the last milestone of a run."""
    return next(reversed(MILESTONES[run]))


def models_of_sweep(wildcards):
    """Manifests of the last milestones of the runs of a sweep."""
    return [MODEL.format(run=run, step=last_step(run)) for run in sweep_of(wildcards)["runs"]]


def evaluations_of_sweep(wildcards):
    """Manifests of the scores of these milestones."""
    places = [SimpleNamespace(run=run, step=last_step(run)) for run in sweep_of(wildcards)["runs"]]
    return [path for place in places for path in evaluations_of_milestone(place)]


def best_recipe(wildcards):
    """Recipe of the best run of a sweep."""
    return argument_of(sweep_of(wildcards)["best"])
