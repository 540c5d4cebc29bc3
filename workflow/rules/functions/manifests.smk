"""Manifests by the config: the recipe and the inputs of each. `tools.check` compares them with those that exist."""


def recipes_to_check():
    """Return the recipes of all stages by the key at which the user wrote them."""
    found = {f"sources.{name}": {"stage": "list", "keys": keys} for name, keys in CONFIG["sources"].items()}
    for name, keys in CONFIG["tokenizers"].items():
        found[f"tokenizers.{name}"] = {"stage": "train_tokenizer", "keys": keys}
    for name, corpus in CONFIG["corpora"].items():
        found[f"corpora.{name}.tokenize"] = {"stage": "tokenize", "keys": corpus.get("tokenize", {})}
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
        part = {"stage": stage, "keys": keys, "milestones": of_milestones(MODEL, name)}
        if "model" in run:
            part["model"] = run["model"]
        if stage == "finetune":
            part["origin"] = origin_of(name)
        found[f"runs.{name}.{stage}"] = part
        found[f"runs.{name}.convert"] = {"stage": "convert", "keys": run.get("convert", {})}
        found[f"runs.{name}.card"] = {"stage": "describe", "keys": run.get("card", {})}
    return found | recipes_of_ladders()


def origin_of(run):
    """Return the run whose model a run has: that of its first initial run."""
    initial = CONFIG["runs"][run].get("initial", {})
    return origin_of(initial["run"]) if "run" in initial and "model" not in CONFIG["runs"][run] else run


def manifests():
    """Return all manifests: {path: {"recipe", "inputs": {key of its identity: path}, ...}}, see `stages.lib.report`.

    `needs` lists inputs whose digest is not in the identity.
    """
    found = {}
    for name in CONFIG["sources"]:
        found[LIST.format(source=name)] = {"recipe": f"sources.{name}"}
    for name, tokenizer in CONFIG["tokenizers"].items():
        lists = [LIST.format(source=source) for source in tokenizer.get("sample", {})]
        found[TOKENIZER.format(tokenizer=name)] = {"recipe": f"tokenizers.{name}", "needs": lists}
    for name, corpus in CONFIG["corpora"].items():
        tokenizer = {"tokenizer": TOKENIZER.format(tokenizer=corpus["tokenizer"])}
        parts, items = of_all_parts(PART, name), items_of_corpus(SimpleNamespace(corpus=name))
        for path in parts:
            source = Path(path).parent.name
            part = {"recipe": f"corpora.{name}.tokenize", "inputs": tokenizer, "source": f"sources.{source}"}
            found[path] = part | {"needs": [LIST.format(source=source), *items]}
        found[CORPUS.format(corpus=name)] = {"inputs": tokenizer, "sources": corpus["sources"], "needs": parts}
    suites_of = suites_of_milestones()
    for name in CONFIG["runs"]:
        found |= manifests_of_run(name, suites_of)
    for name, sweep in CONFIG.get("sweeps", {}).items():
        if "best" in sweep:
            at = SimpleNamespace(sweep=name)
            needs = [*models_of_sweep(at), *evaluations_of_sweep(at)]
            found[BEST.format(sweep=name)] = {"recipe": f"sweeps.{name}.best", "needs": needs}
    for path in all_baselines(None):
        *_, name, corpus, suite = Path(path).with_suffix("").parts
        part = {"recipe": f"suites.{suite}", "inputs": {"corpus": CORPUS.format(corpus=corpus)}}
        found[path] = part | {"needs": lists_of_suite(suite), "baseline": CONFIG["baselines"][name]["path"]}
    return found | manifests_of_contamination() | manifests_of_ladders()


def manifests_of_contamination():
    """Return the manifests of the suites' items, and of those that are contaminated."""
    found = {ITEMS.format(suite=name): {"recipe": f"suites.{name}.items"} for name in CONFIG["suites"]}
    for path in contamination_of(CONFIG["runs"]):
        suite, corpus = Path(path).stem, Path(path).parent.name
        data = {"items": ITEMS.format(suite=suite)}
        tokenizer = {"tokenizer": TOKENIZER.format(tokenizer=CONFIG["corpora"][corpus]["tokenizer"])}
        overlaps = of_all_parts(OVERLAPS, corpus, suite=suite)
        for part_overlaps, part in zip(overlaps, of_all_parts(PART, corpus)):
            found[part_overlaps] = {"recipe": "contamination", "inputs": data | tokenizer, "needs": [part]}
        inputs = data | {"corpus": CORPUS.format(corpus=corpus)}
        found[path] = {"recipe": "contamination", "inputs": inputs, "needs": overlaps}
    return found


def lists_of_suite(suite):
    """Return the list of the prompt-completion source of a suite, if it has one."""
    source = CONFIG["suites"][suite].get("prompt_completion")
    return [LIST.format(source=source)] if source else []


def manifests_of_run(name, suites_of):
    """Return the manifests of a run: milestones, exports, evaluations. `suites_of`: {(run, step): suites}."""
    run, found, corpus = CONFIG["runs"][name], {}, corpus_name(name)
    tokenizer = TOKENIZER.format(tokenizer=CONFIG["corpora"][corpus]["tokenizer"])
    data = {"corpus": CORPUS.format(corpus=corpus), "tokenizer": tokenizer}
    initial = run.get("initial", {})
    origin = initial_manifest(initial) if "run" in initial else name
    needs = [LIST.format(source=source) for source in tuning_sources_of(name)]
    for step, number in MILESTONES[name].items():
        model, export = MODEL.format(run=name, step=step), EXPORT.format(run=name, step=step)
        found[model] = {"recipe": f"runs.{name}.{training_of(run)}", "inputs": data, "needs": needs}
        if initial:
            found[model] |= {"initial": origin, "needs": [*needs, origin]}
        needs = [model]
        found[export] = {"recipe": f"runs.{name}.convert", "inputs": data | {"model": model}}
        at = SimpleNamespace(run=name, step=step)
        scores = [*evaluations_of_milestone(at), *baselines_of_card(at), *contamination_of_card(at)]
        found[CARD.format(run=name, step=step)] = {
            "recipe": f"runs.{name}.card",
            "inputs": {"export": export, "model": model, "corpus": data["corpus"]},
            "needs": scores,
        }
        for suite in sorted(suites_of[name, number]):
            path = EVALUATION.format(run=name, step=step, suite=suite)
            found[path] = {
                "recipe": f"suites.{suite}",
                "inputs": {"export": export, "corpus": data["corpus"]},
                "needs": lists_of_suite(suite),
            }
    return found


def suites_of_milestones():
    """Return {(run, step): names of its suites}, with those of the runs that are tuned from it."""
    found = {}
    for name, run in CONFIG["runs"].items():
        initial = run.get("initial", {})
        scored = [(name, number) for number in MILESTONES[name].values()]
        if training_of(run) == "finetune" and "step" in initial:
            scored.append((initial["run"], initial["step"]))
        for key in scored:
            found.setdefault(key, set()).update(run["suites"])
    return found
