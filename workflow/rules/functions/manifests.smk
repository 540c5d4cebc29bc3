"""Requests of `tools.check` and `tools.plan`: recipes and manifests by the config, ranks and GPU by the profile."""


def recipes_to_check():
    """Return the recipes of all stages by the key at which the user wrote them."""
    found = {f"sources.{name}": {"stage": "list", "keys": keys} for name, keys in CONFIG["sources"].items()}
    for name, keys in CONFIG.get("classifiers", {}).items():
        found[f"classifiers.{name}"] = {"stage": "train_classifier", "keys": keys}
    for name, keys in CONFIG["tokenizers"].items():
        found[f"tokenizers.{name}"] = {"stage": "train_tokenizer", "keys": keys}
    for name, corpus in CONFIG["corpora"].items():
        found[f"corpora.{name}.tokenize"] = {"stage": "tokenize", "keys": corpus.get("tokenize", {})}
        if (near := corpus.get("near_duplicates")) is not None:
            found[f"corpora.{name}.near_duplicates"] = {"stage": "verify_duplicates", "keys": near}
            found[f"corpora.{name}.near_duplicates.sketch"] = {"stage": "sketch", "keys": near.get("sketch", {})}
    for name in CONFIG["suites"]:
        found[f"suites.{name}"] = {"stage": "evaluate", "keys": recipe_of_suite(name)}
        found[f"suites.{name}.items"] = {"stage": "list_items", "keys": items_recipe_of(name)}
    if "contamination" in CONFIG:
        found["contamination"] = {"stage": "find_contamination", "keys": CONFIG["contamination"]}
    for name, sweep in CONFIG.get("sweeps", {}).items():
        if "best" in sweep:
            found[f"sweeps.{name}.best"] = {"stage": "select_best", "keys": sweep["best"]}
    for name, run in CONFIG["runs"].items():
        stage, shape = training_of(run), run.get("model", {}).get("from")
        if shape is not None and not Path(shape).exists():
            continue  # named if the run is wanted
        keys = {key: value for key, value in run[stage].items() if key != "milestones"}
        part = {"stage": stage, "keys": keys}
        if stage in TRAINING:
            part["milestones"] = of_milestones(MODEL, name)
        else:
            part["averaged"] = run["initial"]
        if "model" in run:
            part["model"] = run["model"]
        if stage == "finetune":
            part["origin"] = origin_of(name)
        found[f"runs.{name}.{stage}"] = part
        found[f"runs.{name}.convert"] = {"stage": "convert", "keys": run.get("convert", {})}
        found[f"runs.{name}.card"] = {"stage": "describe", "keys": run.get("card", {})}
    for name in LADDERS:
        part = {"stage": "predict", "keys": prediction_keys(name), "model": target_of(name)["model"]}
        found[f"ladders.{name}"] = part
    return found


def origin_of(run):
    """Return the run whose model a run has: that of its first initial run."""
    initial = CONFIG["runs"][run].get("initial", {})
    return origin_of(initial["run"]) if "run" in initial and "model" not in CONFIG["runs"][run] else run


@functools.cache
def maker_of(path):
    """Return the rule that makes a manifest, and the wildcards of its path; None for another file."""
    found = producer(path.removeprefix(f"{RESULTS}/"))
    if found is None:
        return None
    stage, wildcards = found[0], SimpleNamespace(**found[1])
    return (training_of(named("runs", wildcards.run)) if stage == "pretrain" else stage), wildcards


@functools.cache
def manifest_of(path):
    """Return what the config says of a manifest. WorkflowError if a file of the user's that it needs does not exist.

    `needs`: the manifests among the inputs of its rule; `models`: those of a ladder, or of a mean. `inputs`: of these, by the keys of its identity, those whose
    digests it has; the tokenizer is that of the corpus if the rule does not read it.
    """
    stage, wildcards = maker_of(path)
    functions = filter(callable, workflow.get_rule(name_of_rule(stage)).input)
    listed = [[found] if isinstance(found, str) else found for found in (function(wildcards) for function in functions)]
    needs = {path: maker_of(path)[0] for paths in listed for path in paths if maker_of(path)}
    corpora = [manifest_of(path)["inputs"] for path, made_by in needs.items() if made_by == "index"]
    made = {"recipe": STAGES[stage].config.format(**vars(wildcards)), "inputs": {}, "needs": [*needs]}
    for key, makes in STAGES[stage].inputs.items():
        of_key = [path for path, made_by in needs.items() if STAGES[made_by].makes == makes]
        of_key = of_key or [inputs[key] for inputs in corpora if key in inputs]
        if len(of_key) == 1:
            made["inputs"][key] = of_key[0]
        elif key == "models":
            made[key] = of_key
    if stage == "tokenize":
        made["source"] = f"sources.{wildcards.source}"
    elif stage == "index":
        made["sources"] = named("corpora", wildcards.corpus)["sources"]
    elif stage == "evaluate_baseline":
        made["baseline"] = baseline_of(wildcards)["path"]
    elif initial := stage in TRAINING and named("runs", wildcards.run).get("initial"):
        made["initial"] = initial_manifest(initial) if "run" in initial else wildcards.run
    return made


def manifests_of(files):
    """Return the manifests among `files` and all that they are made from, as `tools.check` reads them (stale.py)."""
    found, waiting = {}, [*files]
    while waiting:
        path = waiting.pop()
        if path not in found and maker_of(path):
            found[path] = manifest_of(path)
            waiting += found[path]["needs"]
    order = [*STAGES]
    return dict(sorted(found.items(), key=lambda item: (order.index(maker_of(item[0])[0]), item[0])))


PLAN_RESOURCES = {
    "device": str,
    "device_memory_gb": float,
    "device_peak_tflops": float,
    "gpu_hour_price": float,
    "mfu": float,
}

# A workflow that imports this one may rename its rules: a profile has the new names.
name_of_rule = workflow.modifier.avail_rulename


def resource_of(stage, name):
    """Return a resource of a rule by the profile, as text without quotes; None if it is not set."""
    given = workflow.resource_settings.overwrite_resources.get(name_of_rule(stage), {}).get(name)
    raw = getattr(given, "raw", given)
    return None if raw is None else str(raw).strip("'\"")


def hardware_of(stage):
    """Return where a stage trains by the profile, as `tools.plan` reads it. UserError for text in place of a number."""
    ranks, nodes = (resource_of(stage, name) or "" for name in ("ranks", "nodes"))
    # they are 1 if an expression computes them for each job
    found = {"ranks": int(ranks) if ranks.isdigit() else "auto" if ranks == "auto" else 1}
    if nodes.isdigit():
        found["nodes"] = int(nodes)
    if minutes := minutes_of(stage):
        found["minutes"] = minutes
    for name, kind in PLAN_RESOURCES.items():
        text = resource_of(stage, name)
        try:
            if text is not None:
                found["price" if name == "gpu_hour_price" else name] = kind(text)
        except ValueError:
            raise UserError(f"the resource {name} of {stage} must be a number, got {text!r}") from None
    return found


def minutes_of(stage):
    """Return the time limit of a stage by the profile, 90 or "2h", in minutes; None for an expression, or without."""
    try:
        found = Resource.parse_human_friendly("runtime", resource_of(stage, "runtime"))
    except WorkflowError:
        return None
    return found if isinstance(found, int) else None


def planned_run(name):
    """Return a run as `tools.plan` reads it, see tools/plan/request.py."""
    run, stage = CONFIG["runs"][name], training_of(CONFIG["runs"][name])
    corpus = corpus_name(name)
    tokenizer = CONFIG["corpora"][corpus]["tokenizer"]
    size = CONFIG["tokenizers"][tokenizer].get("vocab_size")
    return {
        "stage": stage,
        "keys": {key: value for key, value in run[stage].items() if key != "milestones"},
        "model": model_of_origin(name),
        "milestones": milestones_of(run),
        "corpus": CORPUS.format(corpus=corpus),
        "tokenizer": {"manifest": TOKENIZER.format(tokenizer=tokenizer), **({"vocab_size": size} if size else {})},
        "hardware": hardware_of(stage),
    }


def model_of_origin(name):
    """Return the model keys of a run, or of the first run that it starts from; None if its file does not exist."""
    run = CONFIG["runs"][origin_of(name)]
    if "model" in run:
        path = run["model"].get("from")
        return run["model"] if path is None or Path(path).exists() else None
    path = run["initial"].get("config") or str(Path(run["initial"]["path"], "config.json"))
    return {"from": path} if Path(path).is_file() else None


def plan_request(wildcards):
    """The request of `tools.plan`: all runs that `all` trains."""
    trained = [run for run in runs_of_all() if run not in AVERAGED_RUNS]
    return as_json({"results": RESULTS, "runs": {run: planned_run(run) for run in trained}})
