"""What a stage is told: its recipe as one JSON, only keys that the user wrote, and the fingerprint of its code."""

STAGES = ("list", "train_tokenizer", "tokenize", "index", "pretrain", "convert", "evaluate", "summarize")
CODE = {stage: fingerprint(f"stages.{stage}", HOME) for stage in STAGES}


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


def pretrain_recipe(wildcards):
    """The recipe of a run: what its result depends on."""
    return as_json(identity_of_run(wildcards.run))


def identity_of_run(run):
    """The identity keys of a run, as data; its model is a part of the recipe."""
    return {"model": named("runs", run)["model"], **pretrain_keys(run, "identity")}


def pretrain_keys(run, *kinds):
    """The keys of these kinds that the user wrote for a run's pretraining, as data."""
    return of_kinds(named("runs", run)["pretrain"], keys_of("runs", "pretrain"), kinds)


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


def pretrain_operation(wildcards):
    """The keys of a run that change how it runs and how far, not what it computes: they go through `resources`."""
    return as_json(pretrain_keys(wildcards.run, "operation", "horizon"))


def convert_recipe(wildcards):
    """The recipe by which a run is exported."""
    return as_json(named("runs", wildcards.run).get("convert", {}))


def evaluate_recipe(wildcards):
    """The recipe of a suite."""
    return as_json(named("suites", wildcards.suite))


def expected(wildcards):
    """What the config asks for, against which summarize holds what each manifest says of itself."""
    runs = {
        run: {
            "pretrain": identity_of_run(run),
            "convert": recipe.get("convert", {}),
            "milestones": milestones_of(run),
            "suites": {suite: named("suites", suite) for suite in suites_of(run)},
        }
        for run, recipe in CONFIG["runs"].items()
    }
    return as_json({"runs": runs, "code": CODE})
