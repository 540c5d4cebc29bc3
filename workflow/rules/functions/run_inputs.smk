"""Input functions of the rules of a run: training, export, evaluation."""


def corpus_name(run):
    """Return the name of a run's corpus. WorkflowError if the run does not exist."""
    named("runs", run)
    return corpus_of(CONFIG["runs"], run)


def corpus_of_run(wildcards):
    """Manifest of the corpus of a run; of its initial run for a tuned one."""
    return expand(CORPUS, corpus=corpus_name(wildcards.run))


def tokenizer_of_run(wildcards):
    """Manifest of the tokenizer of a run's corpus."""
    return expand(TOKENIZER, tokenizer=named("corpora", corpus_name(wildcards.run))["tokenizer"])


def tuning_sources_of(run):
    """Return the names of the sources that a run is tuned on, sorted; [] for other runs."""
    return sorted(named("runs", run).get("finetune", {}).get("weights", {}))


def tuning_sources_of_run(wildcards):
    """Lists of the sources that a run is tuned on."""
    return expand(LIST, source=tuning_sources_of(wildcards.run))


def template_of_run(wildcards):
    """The file of a run's chat template; [] for a shipped one. A changed file trains a new model."""
    template = named("runs", wildcards.run)["finetune"].get("template")
    shipped = template is None or template in SHIPPED_TEMPLATES
    return [] if shipped else local(template)  # the user's file: Snakemake puts no prefix of a module before it


def model_config_of_run(wildcards):
    """The config.json that `model.from` names; [] without one. A changed file trains a new model."""
    path = named("runs", wildcards.run).get("model", {}).get("from")
    if path is None:
        return []
    file = Path(path, "config.json") if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise WorkflowError(f"runs.{wildcards.run}.model.from must be a config.json or its directory, got {path}")
    return local(str(file))  # the user's file: Snakemake puts no prefix of a module before it


def initial_of_run(wildcards):
    """Manifest of the model that a run starts from; [] if it starts from no other run."""
    initial = named("runs", wildcards.run).get("initial", {})
    return initial_manifest(initial) if "run" in initial else []


def initial_manifest(initial):
    """Manifest of the model that an `initial` with a run or a sweep names."""
    return expand(BEST, sweep=initial["sweep"])[0] if "sweep" in initial else model_of(initial["run"], initial["step"])


def previous_milestone(wildcards):
    """Manifest of the milestone before; [] for the first."""
    number = milestone(wildcards)
    earlier = [name for name, before in MILESTONES[wildcards.run].items() if before < number]
    return MODEL.format(run=wildcards.run, step=earlier[-1]) if earlier else []


def model_of(run, milestone):
    """Manifest of a milestone of a run."""
    return MODEL.format(run=run, step=step_name(run, milestone))


def model_of_milestone(wildcards):
    """Manifest of the model to export."""
    milestone(wildcards)
    return MODEL.format(run=wildcards.run, step=wildcards.step)


def export_of_milestone(wildcards):
    """Manifest of the export of a milestone."""
    milestone(wildcards)
    return EXPORT.format(run=wildcards.run, step=wildcards.step)


def sources_of_run(run):
    """Return the names of a run's sources: those of its corpus, and those that it is tuned on, each once."""
    return list(dict.fromkeys([*named("corpora", corpus_name(run))["sources"], *tuning_sources_of(run)]))


def lists_of_run(wildcards):
    """Lists of the sources of a run."""
    return expand(LIST, source=sources_of_run(wildcards.run))


def evaluations_of_milestone(wildcards):
    """Manifests of the scores of a milestone by the suites of its run."""
    return expand(EVALUATION, run=wildcards.run, step=wildcards.step, suite=named("runs", wildcards.run)["suites"])


def tuned_from(run, step):
    """Return the names of the runs that are tuned from a milestone of another run."""
    return [name for name in TUNED_RUNS if CONFIG["runs"][name]["initial"] == {"run": run, "step": step}]


def export_of_evaluation(wildcards):
    """Manifest of the export to score. WorkflowError if neither its run nor a run tuned from it has the suite."""
    suites = {*named("runs", wildcards.run)["suites"]}
    for run in tuned_from(wildcards.run, milestone(wildcards)):
        suites.update(CONFIG["runs"][run]["suites"])
    if wildcards.suite not in suites:
        raise WorkflowError(f"run {wildcards.run} has no suite {wildcards.suite}")
    return expand(EXPORT, run=wildcards.run, step=wildcards.step)


def prompt_completion_of_suite(wildcards):
    """List of the prompt-completion source of a suite; [] if it has none."""
    suite = named("suites", wildcards.suite)
    return expand(LIST, source=suite["prompt_completion"]) if "prompt_completion" in suite else []
