"""What a stage is told: its recipe as one JSON, only keys that the user wrote, and the fingerprint of its code."""

DATA_STAGES = ("list", "train_tokenizer", "hash_documents", "find_duplicates", "tokenize", "index")
STAGES = (*DATA_STAGES, "pretrain", "finetune", "convert", "evaluate", "summarize")
FINGERPRINTS = fingerprints([f"stages.{stage}" for stage in STAGES], HOME)
CODE = {stage: FINGERPRINTS[f"stages.{stage}"] for stage in STAGES}


def keys_of(section, *names):
    """The keys that the schema has for a part of a section's entries, with their kinds and defaults."""
    schema = SCHEMA["properties"][section]["additionalProperties"]
    for name in names:
        schema = schema["properties"][name]
    return schema["properties"]


def as_json(data):
    """JSON that is the same for the same data: it stands in `params`, where a changed text is a changed job."""
    return json.dumps(data, sort_keys=True)


def rerun_on_code(stage):
    """The fingerprint of a stage that keeps its results when its code changes, unless the config says otherwise."""
    return CODE[stage] if CONFIG.get("rerun_on_code") else ""


def source_recipe(wildcards):
    """The recipe of a source."""
    return as_json(named("sources", wildcards.source))


def tokenizer_recipe(wildcards):
    """The recipe of a tokenizer."""
    return as_json(named("tokenizers", wildcards.tokenizer))


def tokenize_recipe(wildcards):
    """The recipe by which a corpus' parts are made."""
    return as_json(named("corpora", wildcards.corpus).get("tokenize", {}))


def duplicates_option(wildcards, input):
    """The option of tokenize that names what is to be dropped, where anything is."""
    return f"--duplicates {shlex.quote(str(input.duplicates))}" if input.duplicates else ""


def training_recipe(wildcards):
    """The recipe of a run: what its result depends on."""
    return as_json(identity_of_run(wildcards.run))


def identity_of_run(run):
    """The identity keys of a run, as data; its model is a part of the recipe where it is not another run's."""
    model = {"model": CONFIG["runs"][run]["model"]} if "model" in named("runs", run) else {}
    return {**model, **training_keys(run, "identity")}


def training_keys(run, *kinds):
    """The keys of these kinds that the user wrote for a run's training, as data."""
    recipe = named("runs", run)
    stage = training_of(recipe)
    return of_kinds(recipe[stage], keys_of("runs", stage), kinds)


def of_kinds(recipe, schema, kinds):
    """The part of a recipe whose keys are of these kinds, groups of keys included."""
    kept = {}
    for key, value in recipe.items():
        if "properties" not in schema[key]:
            if schema[key]["x-kind"] in kinds:
                kept[key] = value
        elif group := of_kinds(value, schema[key]["properties"], kinds):
            kept[key] = group
    return kept


def training_operation(wildcards):
    """The keys of a run that change how it runs and how far, not what it computes: they go through `resources`."""
    return as_json(training_keys(wildcards.run, "operation", "horizon"))


def attempt_of_job(wildcards, attempt):
    """Which attempt of a job this is, from 1."""
    return attempt


def convert_recipe(wildcards):
    """The recipe by which a run is exported."""
    return as_json(named("runs", wildcards.run).get("convert", {}))


def evaluate_recipe(wildcards):
    """The recipe of a suite."""
    return as_json(recipe_of_suite(wildcards.suite))


def recipe_of_suite(suite):
    """The keys of a suite but for its pairs, which are an input, as data."""
    return {key: value for key, value in named("suites", suite).items() if key != "prompt_completion"}


def tasks_of_suites():
    """The tasks of all suites, each once."""
    return list(dict.fromkeys(task for suite in CONFIG["suites"].values() for task in suite["tasks"]))


def include_paths():
    """The directories with task files of all suites, each once."""
    return list(dict.fromkeys(suite["include_path"] for suite in CONFIG["suites"].values() if "include_path" in suite))


def expected(wildcards):
    """What the config asks for, against which summarize holds what each manifest says of itself."""
    runs = {run: expected_of_run(run, CONFIG["runs"][run]) for run in runs_of_all()}
    return as_json({"runs": runs, "code": CODE})


def expected_of_run(run, recipe):
    """What the config asks for of one run."""
    return {
        training_of(recipe): identity_of_run(run),
        "convert": recipe.get("convert", {}),
        "milestones": milestones_of(recipe),
        "suites": {suite: recipe_of_suite(suite) for suite in recipe["suites"]},
        **({"initial": recipe["initial"]} if "initial" in recipe else {}),
    }
