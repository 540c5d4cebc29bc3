"""Ladders: predictions of runs from smaller ones. The runs themselves stand among the others of the config."""

PREDICTION = f"{RESULTS}/ladders/{{ladder}}.json"
LADDERS = CONFIG.get("ladders", {})
LADDER_RUNS = ladder_runs(CONFIG)


def ladder_of(wildcards):
    """Return the keys of a ladder. WorkflowError if the config has none of that name."""
    if wildcards.ladder not in LADDERS:
        raise WorkflowError(f"the config has no ladders.{wildcards.ladder}; ladders: {', '.join(LADDERS) or 'none'}")
    return LADDERS[wildcards.ladder]


def all_predictions():
    """Predictions of all ladders; [] without one."""
    return expand(PREDICTION, ladder=LADDERS)


def all_ladders(wildcards):
    """Predictions of all ladders. WorkflowError if there are none."""
    if not LADDERS:
        raise WorkflowError("the config has no ladder (ladders.NAME with target, sizes and tokens_per_parameter)")
    return all_predictions()


def predictions_of_all(wildcards):
    """Predictions of all ladders, for the summary."""
    return all_predictions()


def models_of_ladder(wildcards):
    """Manifests of the last milestones of a ladder's runs."""
    return [MODEL.format(run=run, step=[*MILESTONES[run]][-1]) for run in ladder_of(wildcards)["runs"]]


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


def manifests_of_ladders():
    """Return the manifests of all predictions, see `manifests`."""
    found = {}
    for name, path in zip(LADDERS, all_predictions()):
        at = SimpleNamespace(ladder=name)
        inputs = {"corpus": corpus_of_ladder(at)[0]}
        found[path] = {"recipe": f"ladders.{name}", "inputs": inputs, "needs": models_of_ladder(at)}
    return found


def recipes_of_ladders():
    """Return the recipes of all predictions by their keys in the config, see `recipes_to_check`."""
    return {
        f"ladders.{name}": {"stage": "predict", "keys": prediction_keys(name), "model": target_of(name)["model"]}
        for name in LADDERS
    }
