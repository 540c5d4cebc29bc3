"""Input functions of the contamination rules."""


def items_of_suite(wildcards):
    """Items of a suite. WorkflowError if it does not exist, or its tasks are all local."""
    if not has_items(named("suites", wildcards.suite)):
        raise WorkflowError(f"suite {wildcards.suite} has no items: its tasks are made from the validation split")
    return expand(ITEMS, suite=wildcards.suite)


def has_items(suite):
    """Return true if a suite has a task that is not made from validation data."""
    return not set(suite["tasks"]) <= set(LOCAL_TASKS)


def part_of_corpus(wildcards):
    """Manifest of a part of a corpus. WorkflowError if the corpus has no such source or part."""
    list_of_part(wildcards)
    return expand(PART, corpus=wildcards.corpus, source=wildcards.source, part=wildcards.part)


def overlaps_of_corpus(wildcards):
    """Manifests of the overlaps of all parts of a corpus with a suite."""
    return of_all_parts(OVERLAPS, wildcards.corpus, suite=wildcards.suite)


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
