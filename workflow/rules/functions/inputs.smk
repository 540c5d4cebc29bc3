"""Input functions of the rules: the files that a rule reads, by its wildcards. WorkflowError for what the config lacks."""


def classifier_of_source(wildcards):
    """Manifest of the classifier that filters a source; [] without one."""
    quality = (named("sources", wildcards.source).get("filters") or {}).get("quality")
    return expand(CLASSIFIER, classifier=quality["classifier"]) if quality else []


def classifier_lists(wildcards):
    """Lists of the sources that a classifier is trained on."""
    recipe = named("classifiers", wildcards.classifier)
    return expand(LIST, source=sorted([*recipe["good"], *recipe["bad"]]))


def tokenizer_lists(wildcards):
    """Lists of the sources that a tokenizer's sample comes from; [] for a custom tokenizer."""
    return expand(LIST, source=sorted(named("tokenizers", wildcards.tokenizer).get("sample", {})))


def tokenizer_file(wildcards):
    """The tokenizer.json of a custom tokenizer, [] for a trained one. A changed file reruns what depends on it."""
    name, tokenizer = wildcards.tokenizer, named("tokenizers", wildcards.tokenizer)
    if "path" not in tokenizer:
        return []
    if not Path(tokenizer["path"]).is_file():
        raise WorkflowError(f"tokenizers.{name}.path must be a file; {tokenizer['path']} does not exist")
    return local(tokenizer["path"])  # the user's file: Snakemake puts no prefix of a module before it


def corpus_of_wildcard(wildcards):
    """Manifest of a rule's corpus."""
    return expand(CORPUS, corpus=wildcards.corpus)


def tokenizer_of_corpus(wildcards):
    """Manifest of a corpus' tokenizer."""
    return expand(TOKENIZER, tokenizer=named("corpora", wildcards.corpus)["tokenizer"])


def list_of_part(wildcards):
    """List of a part's source. WorkflowError if the corpus has no such source or part."""
    corpus = named("corpora", wildcards.corpus)
    if wildcards.source not in corpus["sources"]:
        raise WorkflowError(f"corpus {wildcards.corpus} has no source {wildcards.source}")
    if int(wildcards.part) >= parts_of(wildcards.corpus):
        raise WorkflowError(f"corpus {wildcards.corpus} has no part {int(wildcards.part)}")
    return expand(LIST, source=wildcards.source)


def parts_of(corpus):
    """Return the number of parts of each source of a corpus."""
    return named("corpora", corpus).get("tokenize", {}).get("parts", TokenizeRecipe.parts)


def parts_of_wildcard(wildcards):
    """Return the number of parts of a rule's corpus."""
    return parts_of(wildcards.corpus)


def of_all_parts(pattern):
    """Return the input function for the manifests of all parts of a rule's corpus, and of its suite if it has one."""

    def manifests(wildcards):
        sources = named("corpora", wildcards.corpus)["sources"]
        parts = [f"{part:05d}" for part in range(parts_of(wildcards.corpus))]
        suite = getattr(wildcards, "suite", None)
        return expand(pattern, corpus=wildcards.corpus, suite=suite, source=sources, part=parts)

    return manifests


def duplicates_of_corpus(wildcards):
    """Manifest of find_duplicates for a corpus; [] if duplicates are kept."""
    drops = named("corpora", wildcards.corpus).get("tokenize", {}).get("duplicates") == "drop"
    return expand(DUPLICATES, corpus=wildcards.corpus) if drops else []


def candidates_of_corpus(wildcards):
    """Manifest of the candidates of near duplicates of a corpus. WorkflowError if its near duplicates stay."""
    if named("corpora", wildcards.corpus).get("near_duplicates") is None:
        raise WorkflowError(f"corpora.{wildcards.corpus} has no near_duplicates: its keys say which are removed")
    return expand(CANDIDATES, corpus=wildcards.corpus)


def near_duplicates_of_corpus(wildcards):
    """Manifest of verify_duplicates for a corpus; [] if near duplicates stay."""
    drops = named("corpora", wildcards.corpus).get("near_duplicates") is not None
    return expand(NEAR_DUPLICATES, corpus=wildcards.corpus) if drops else []


def items_of_suite(wildcards):
    """Items of a suite. WorkflowError if it does not exist, or its tasks are all local."""
    if not has_items(named("suites", wildcards.suite)):
        raise WorkflowError(f"suite {wildcards.suite} has no items: its tasks are made from the validation split")
    return expand(ITEMS, suite=wildcards.suite)


def has_items(suite):
    """Return true if a suite has a task that is not made from validation data."""
    return not set(suite["tasks"]) <= set(local_tasks.NAMES)


def part_of_corpus(wildcards):
    """Manifest of a part of a corpus. WorkflowError if the corpus has no such source or part."""
    list_of_part(wildcards)
    return expand(PART, corpus=wildcards.corpus, source=wildcards.source, part=wildcards.part)


def items_of_corpus(wildcards):
    """Items that are left out of a corpus; [] by default."""
    suites = named("corpora", wildcards.corpus).get("tokenize", {}).get("decontaminate", [])
    return expand(ITEMS, suite=suites)


def contamination_of(runs):
    """Manifests of the contamination of the corpora of some runs by their suites; [] without `contamination`."""
    if "contamination" not in CONFIG:
        return []
    with_items = {name for name, suite in CONFIG["suites"].items() if has_items(suite)}
    pairs = {(corpus_name(run), suite): None for run in runs for suite in CONFIG["runs"][run]["suites"]}
    return [CONTAMINATION.format(corpus=corpus, suite=suite) for corpus, suite in pairs if suite in with_items]


def contamination_of_card(wildcards):
    """Manifests of the contamination of a run's corpus by its suites; [] without `contamination`."""
    return contamination_of([wildcards.run])


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
    if run in AVERAGED_RUNS:
        run = CONFIG["runs"][run]["initial"]["run"]
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


def models_to_average(wildcards):
    """Manifests of the milestones whose weights are averaged."""
    milestone(wildcards)
    run = CONFIG["runs"][wildcards.run]
    origin, last = run["initial"]["run"], run["initial"]["step"]
    steps = [name for name, number in MILESTONES[origin].items() if number <= last]
    return expand(MODEL, run=origin, step=steps[-run["average_weights"]["num_milestones"] :])


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


def export_of_evaluation(wildcards):
    """Manifest of the export to score. WorkflowError if neither its run nor a run tuned from it has the suite."""
    suites = {*named("runs", wildcards.run)["suites"]}
    initial = {"run": wildcards.run, "step": milestone(wildcards)}
    for run in TUNED_RUNS:
        if CONFIG["runs"][run]["initial"] == initial:
            suites.update(CONFIG["runs"][run]["suites"])
    if wildcards.suite not in suites:
        raise WorkflowError(f"run {wildcards.run} has no suite {wildcards.suite}")
    return expand(EXPORT, run=wildcards.run, step=wildcards.step)


def prompt_completion_of_suite(wildcards):
    """List of the prompt-completion source of a suite; [] if it has none."""
    suite = named("suites", wildcards.suite)
    return expand(LIST, source=suite["prompt_completion"]) if "prompt_completion" in suite else []


def all_baselines(wildcards):
    """Scores of all baselines, by the suites of each corpus' runs."""
    return list(dict.fromkeys(path for run in runs_of_all() for path in baselines_of_run(run)))


def baselines_of_run(run):
    """Scores of all baselines by the suites of a run."""
    suites, corpus = named("runs", run)["suites"], corpus_name(run)
    return expand(BASELINE, baseline=CONFIG.get("baselines", {}), corpus=corpus, suite=suites)


def baselines_of_card(wildcards):
    """Scores beside those of a run on its card: of the model that it is tuned from, and of the baselines."""
    return [*initial_evaluations(wildcards.run), *baselines_of_run(wildcards.run)]


def all_scores(wildcards):
    """Scores of all runs and baselines."""
    return all_evaluations(wildcards) + all_baselines(wildcards)


def baseline_of(wildcards):
    """Return the keys of a baseline. WorkflowError if the config has none of that name."""
    known = CONFIG.get("baselines", {})
    if wildcards.baseline not in known:
        raise WorkflowError(
            f"the config has no baselines.{wildcards.baseline}; baselines: {', '.join(known) or 'none'}"
        )
    return known[wildcards.baseline]


def files_of_baseline(wildcards):
    """Files of a baseline in a directory: changed ones are scored again. [] for a repository of the Hub."""
    directory = Path(baseline_of(wildcards)["path"])
    found = sorted(file for pattern in BASELINE_FILES for file in directory.glob(pattern))
    return [local(str(file)) for file in found]


def baseline_option(wildcards):
    """Return the options of evaluate that name a baseline."""
    keys = baseline_of(wildcards)
    return ["--baseline", keys["path"], *(["--revision", keys["revision"]] if "revision" in keys else [])]


def baselines_of_hub():
    """Return the baselines that the Hub has, as ID or ID@REVISION."""
    found = [keys for keys in CONFIG.get("baselines", {}).values() if not Path(keys["path"]).is_dir()]
    return ["@".join([keys["path"], *filter(None, [keys.get("revision")])]) for keys in found]


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


LADDERS = CONFIG.get("ladders", {})
LADDER_RUNS = ladder_runs(CONFIG)


def ladder_of(wildcards):
    """Return the keys of a ladder. WorkflowError if the config has none of that name."""
    if wildcards.ladder not in LADDERS:
        raise WorkflowError(f"the config has no ladders.{wildcards.ladder}; ladders: {', '.join(LADDERS) or 'none'}")
    return LADDERS[wildcards.ladder]


def all_predictions(wildcards):
    """Predictions of all ladders; [] without one."""
    return expand(PREDICTION, ladder=LADDERS)


def all_ladders(wildcards):
    """Predictions of all ladders. WorkflowError if there are none."""
    if not LADDERS:
        raise WorkflowError("the config has no ladder (ladders.NAME with target, sizes and tokens_per_parameter)")
    return all_predictions(wildcards)


def models_of_ladder(wildcards):
    """Manifests of the last milestones of a ladder's runs."""
    return [MODEL.format(run=run, step=last_step(run)) for run in ladder_of(wildcards)["runs"]]


def corpus_of_ladder(wildcards):
    """Manifest of the corpus of a ladder's target."""
    return expand(CORPUS, corpus=corpus_name(ladder_of(wildcards)["target"]))


def model_config_of_ladder(wildcards):
    """The config.json that the target's `model.from` names; [] without one."""
    return model_config_of_run(SimpleNamespace(run=ladder_of(wildcards)["target"]))


def prediction_recipe(wildcards):
    """Recipe of a prediction: the target, its shape unless that is in a config.json, and its number of tokens."""
    keys = prediction_keys(wildcards.ladder)
    model = {key: value for key, value in target_of(wildcards.ladder)["model"].items() if key != "from"}
    return argument_of(keys | ({"model": model} if model else {}))


def prediction_keys(ladder):
    """Return the keys of a prediction's recipe but the target's model."""
    run, name = target_of(ladder), LADDERS[ladder]["target"]
    return {"target": name, "tokens": planned_tokens(run), "weights": run["pretrain"]["weights"]}


def target_of(ladder):
    """Return the target of a ladder, by its name."""
    return CONFIG["runs"][ladder_of(SimpleNamespace(ladder=ladder))["target"]]
