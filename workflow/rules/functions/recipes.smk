"""Recipes of the stages, each one JSON of the keys that the user wrote, and the fingerprints of their code."""

DATA_STAGES = ("list", "train_tokenizer", "hash_documents", "find_duplicates", "tokenize", "index")
CONTAMINATION_STAGES = ("list_items", "find_overlaps", "find_contamination")
MODEL_STAGES = ("pretrain", "finetune", "predict", "convert", "evaluate", "select_best", "describe", "summarize")
STAGES = (*DATA_STAGES, *CONTAMINATION_STAGES, *MODEL_STAGES)
LONGEST_ARGUMENT = 128 * 1024  # bytes of an argument with its NUL
FINGERPRINTS = fingerprints([f"stages.{stage}" for stage in STAGES], HOME)
CODE = {stage: FINGERPRINTS[f"stages.{stage}"] for stage in STAGES}


def schema_of(section, *names):
    """Return the schema of a part of a section's entries."""
    schema = SCHEMA["properties"][section]["additionalProperties"]
    for name in names:
        schema = schema["properties"][name]
    return schema


def keys_of(section, *names):
    """Return the schema's keys of a part of a section's entries, with kinds and defaults."""
    return schema_of(section, *names)["properties"]


def as_json(data):
    """Return JSON that is the same for the same data: in `params`, a changed text is a changed job."""
    return json.dumps(data, sort_keys=True)


def argument_of(data):
    """Return a recipe as the argument of a stage: JSON, or the path of a file with it if Linux takes no longer argument.

    The file's name has the digest of its content: in `params`, another recipe is another job. Each job writes it.
    """
    text = as_json(data)
    if len(text) < LONGEST_ARGUMENT:
        return text
    path = Path(".snakemake/caravan/recipes", f"{hashlib.sha256(text.encode()).hexdigest()}.json")
    if not workflow.dryrun and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return str(path)


def rerun_on_code(stage):
    """Return the fingerprint of a stage that keeps its results when its code changes, if `rerun_on_code` is set."""
    return CODE[stage] if CONFIG.get("rerun_on_code") else ""


def source_recipe(wildcards):
    """Identity keys of a source's recipe."""
    return argument_of(of_kinds(named("sources", wildcards.source), keys_of("sources"), ("identity",)))


def source_operation(wildcards):
    """Operation keys of a source's recipe: they pass through `resources`, which triggers nothing."""
    return argument_of(of_kinds(named("sources", wildcards.source), keys_of("sources"), ("operation",)))


def max_malformed_of_part(wildcards):
    """`max_malformed` of a part's source."""
    return str(max_malformed_of(wildcards.source))


def max_malformed_of_corpus(wildcards):
    """`max_malformed` of the sources of a corpus, as JSON."""
    return as_json({name: max_malformed_of(name) for name in named("corpora", wildcards.corpus)["sources"]})


def max_malformed_of(source):
    """Return `max_malformed` of a source by the config: its list may be older."""
    return named("sources", source).get("max_malformed", keys_of("sources")["max_malformed"]["default"])


def tokenizer_recipe(wildcards):
    """Recipe of a tokenizer."""
    return argument_of(named("tokenizers", wildcards.tokenizer))


def tokenize_recipe(wildcards):
    """Recipe of the parts of a corpus."""
    return argument_of(named("corpora", wildcards.corpus).get("tokenize", {}))


def training_recipe(wildcards):
    """Identity keys of a run's recipe."""
    return argument_of(identity_of_run(wildcards.run))


def identity_of_run(run):
    """Return the identity keys of a run, as data, with its model unless that is another run's.

    The shape that `model.from` names is not in it: that file is an input.
    """
    model = {key: value for key, value in named("runs", run).get("model", {}).items() if key != "from"}
    return {**({"model": model} if model else {}), **training_keys(run, "identity")}


def training_keys(run, *kinds):
    """Return the keys of these kinds that the user wrote for a run's training, as data."""
    recipe = named("runs", run)
    stage = training_of(recipe)
    return of_kinds(recipe[stage], keys_of("runs", stage), kinds)


def of_kinds(recipe, schema, kinds):
    """Return the part of a recipe whose keys are of these kinds, groups of keys included."""
    kept = {}
    for key, value in recipe.items():
        if "properties" not in schema[key]:
            if schema[key]["x-kind"] in kinds:
                kept[key] = value
        elif group := of_kinds(value, schema[key]["properties"], kinds):
            kept[key] = group
    return kept


def training_operation(wildcards):
    """Operation and horizon keys of a run: they pass through `resources`, which triggers nothing."""
    return argument_of(training_keys(wildcards.run, "operation", "horizon"))


def convert_recipe(wildcards):
    """Recipe of a run's export."""
    return argument_of(named("runs", wildcards.run).get("convert", {}))


def evaluate_recipe(wildcards):
    """Recipe of a suite."""
    return argument_of(recipe_of_suite(wildcards.suite))


def card_recipe(wildcards):
    """Recipe of the cards of a run."""
    return argument_of(named("runs", wildcards.run).get("card", {}))


def recipe_of_suite(suite):
    """Return the keys of a suite without its prompt-completion source, which is an input."""
    return {key: value for key, value in named("suites", suite).items() if key != "prompt_completion"}


def items_recipe(wildcards):
    """Recipe of the items of a suite."""
    return argument_of(items_recipe_of(wildcards.suite))


def items_recipe_of(suite):
    """Return the keys of a suite that its items depend on."""
    keys = ("tasks", "include_path", "trust_task_code")
    return {key: value for key, value in named("suites", suite).items() if key in keys}


def contamination_recipe(wildcards):
    """Recipe of the search for contaminated items. WorkflowError if the config has none."""
    if "contamination" not in CONFIG:
        raise WorkflowError("the config has no contamination: its keys say how contaminated items are found")
    return argument_of(CONFIG["contamination"])


def expected(wildcards):
    """Recipes of all runs by the config, with which summarize compares each manifest, and what its tables show."""
    runs = {run: expected_of_run(run, CONFIG["runs"][run]) for run in runs_of_all()}
    defaults = {stage: defaults_of_runs(stage, runs.values()) for stage in ("pretrain", "finetune")}
    sweeps = {name: [*sweep["runs"]] for name, sweep in CONFIG.get("sweeps", {}).items()}
    return as_json({"runs": runs, "code": CODE, "defaults": defaults, "sweeps": sweeps})


def defaults_of_runs(stage, runs):
    """Return the defaults of the keys of a stage that any of its runs sets: a new optional key changes nothing here."""
    defaults = defaults_of(schema_of("runs", stage)) | defaults_of(schema_of("runs", "model"), "model.")
    written = set().union(*(dotted(run.get(stage, {})) for run in runs))
    return {key: default for key, default in defaults.items() if key in written}


def expected_initial(run, initial):
    """Return what the config says of the model that a run starts from: its digest, or where its manifest lies."""
    if run in CHECKED.initial:
        return initial | {"digest": CHECKED.initial[run]}
    if "sweep" in initial:
        return initial | {"model": f"sweeps/{initial['sweep']}/best.json"}
    return initial | {"model": f"{initial['run']}/models/{step_name(initial['run'], initial['step'])}.json"}


def expected_of_run(run, recipe):
    """Return what the config says of one run, recipes as their manifests have them."""
    stage = training_of(recipe)
    training = identity_of(schema_of("runs", stage), {k: v for k, v in recipe[stage].items() if k != "milestones"})
    model = {key: value for key, value in recipe.get("model", {}).items() if key != "from"}
    if model:
        training["model"] = identity_of(schema_of("runs", "model"), model)
    return {
        stage: training,
        "model_config": recipe.get("model", {}).get("from"),
        "convert": identity_of(schema_of("runs", "convert"), recipe.get("convert", {})),
        "corpus": corpus_name(run),
        "milestones": [*MILESTONES[run]],
        "suites": {suite: identity_of(schema_of("suites"), recipe_of_suite(suite)) for suite in recipe["suites"]},
        **({"initial": expected_initial(run, recipe["initial"])} if "initial" in recipe else {}),
    }
