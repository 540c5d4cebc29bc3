"""Files of each target."""


def all_tokenizers(wildcards):
    """Manifests of all tokenizers."""
    return expand(TOKENIZER, tokenizer=CONFIG["tokenizers"])


def all_corpora(wildcards):
    """Manifests of all corpora."""
    return expand(CORPUS, corpus=CONFIG["corpora"])


def runs_of_all():
    """Return the names of the runs that `all` scores; tuned runs only if the config sets `tune`, and no ladder's.

    Averaged weights are scored if the runs that they are the means of are.
    """
    without = {*LADDER_RUNS, *([] if CONFIG.get("tune") else TUNED_RUNS)}
    without |= {name for name in AVERAGED_RUNS if CONFIG["runs"][name]["initial"]["run"] in without}
    return [run for run in CONFIG["runs"] if run not in without]


def of_milestones(pattern, run, **more):
    """Expand a pattern over all milestones of a run."""
    return expand(pattern, run=run, step=MILESTONES[run], **more)


def of_all_milestones(pattern):
    """Return the input function for the manifests of all milestones of all runs."""

    def manifests(wildcards):
        return [path for run in runs_of_all() for path in of_milestones(pattern, run)]

    return manifests


all_models, all_exports, all_cards = map(of_all_milestones, (MODEL, EXPORT, CARD))


def initial_evaluations(run):
    """Manifests of the evaluations of a tuned run's initial model; [] for other runs."""
    recipe = named("runs", run)
    before = recipe.get("initial", {})
    if training_of(recipe) != "finetune" or "step" not in before:
        return []
    return expand(EVALUATION, run=before["run"], step=step_name(before["run"], before["step"]), suite=recipe["suites"])


def evaluations_of(run):
    """Manifests of a run's evaluations; for a tuned run also those of its initial model."""
    return initial_evaluations(run) + of_milestones(EVALUATION, run, suite=CONFIG["runs"][run]["suites"])


def all_evaluations(wildcards):
    """Manifests of all evaluations of all runs, each once."""
    return list(dict.fromkeys(path for run in runs_of_all() for path in evaluations_of(run)))


def corpora_of_all(wildcards):
    """Manifests of the corpora of all runs, each once."""
    return expand(CORPUS, corpus=dict.fromkeys(map(corpus_name, runs_of_all())))


def lists_of_all(wildcards):
    """Lists of the sources of all runs, each once."""
    return expand(LIST, source=dict.fromkeys(source for run in runs_of_all() for source in sources_of_run(run)))


def all_contamination(wildcards):
    """Manifests of the contamination of all corpora by the suites of their runs; [] without `contamination`."""
    return contamination_of(runs_of_all())


def all_tuned(wildcards):
    """Manifests of all evaluations of tuned runs, and of their means. WorkflowError without a tuned run."""
    if not TUNED_RUNS:
        raise WorkflowError("the config has no tuned run (a run with finetune in place of pretrain)")
    means = [name for name in AVERAGED_RUNS if CONFIG["runs"][name]["initial"]["run"] in TUNED_RUNS]
    return list(dict.fromkeys(path for run in [*TUNED_RUNS, *means] for path in evaluations_of(run)))


TARGETS = {
    "tokenizers": all_tokenizers,
    "tokens": all_corpora,
    "models": all_models,
    "exports": all_exports,
    "scores": all_scores,
    "cards": all_cards,
    "contamination": all_contamination,
    "tuned": all_tuned,
    "ladders": all_ladders,
}
"""{target: the function of its files}"""
