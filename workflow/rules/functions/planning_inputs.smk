"""Requests of plans: runs by the config, ranks and GPU by the profile."""

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
    """Return where a stage trains by the profile, as `tools.plan` reads it. ConfigError for text in place of a number."""
    found = {"ranks": "auto" if resource_of(stage, "ranks") == "auto" else ranks_per_node(stage)}
    nodes = resource_of(stage, "nodes") or ""
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
            raise ConfigError(f"the resource {name} of {stage} must be a number, got {text!r}") from None
    return found


def minutes_of(stage):
    """Return the time limit of a stage by the profile, 90 or "2h", in minutes; None for an expression, or without."""
    try:
        found = Resource.parse_human_friendly("runtime", resource_of(stage, "runtime"))
    except WorkflowError:
        return None
    return found if isinstance(found, int) else None


def ranks_per_node(stage):
    """Return the ranks per node by the profile; 1 if they are computed for each job."""
    ranks = resource_of(stage, "ranks") or ""
    return int(ranks) if ranks.isdigit() else 1


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
    """The request of `tools.plan`: all runs that `all` makes."""
    return as_json({"results": RESULTS, "runs": {run: planned_run(run) for run in runs_of_all()}})
