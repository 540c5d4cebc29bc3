"""Baselines: models of any origin, scored by the suites of the runs."""


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
