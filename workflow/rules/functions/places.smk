"""Paths of all results, and the entries and milestones of the config that their wildcards name."""


def result(stage):
    """Return the path of a rule's manifest, with its wildcards."""
    return f"{RESULTS}/{STAGES[stage].output}"


def log_of(stage):
    """Return the path of a rule's log: one for each value of its wildcards."""
    wildcards = re.findall(r"{\w+}", STAGES[stage].output)
    return f"{RESULTS}/logs/{'/'.join([stage, *wildcards])}.log"


CLASSIFIER = result("train_classifier")
LIST, TOKENIZER, PART, CORPUS = map(result, ("list", "train_tokenizer", "tokenize", "index"))
HASHES, DUPLICATES = map(result, ("hash_documents", "find_duplicates"))
SKETCHES, CANDIDATES, COPIES, NEAR_DUPLICATES = map(
    result, ("sketch", "find_candidates", "copy_candidates", "verify_duplicates")
)
ITEMS, OVERLAPS, CONTAMINATION = map(result, ("list_items", "find_overlaps", "find_contamination"))
MODEL, EXPORT, CARD = map(result, ("pretrain", "convert", "describe"))
EVALUATION, BASELINE = map(result, ("evaluate", "evaluate_baseline"))
BEST, PREDICTION, SUMMARY = map(result, ("select_best", "predict", "summarize"))
SCORES = f"{RESULTS}/scores.csv"
TEXT = f"{RESULTS}/summary.txt"
PAGE = f"{RESULTS}/card.html"
PAGES = f"{RESULTS}/pages/{{category}}.html"
PLAN = f"{RESULTS}/plan.json"
PLAN_TEXT = f"{RESULTS}/plan.txt"
FIGURES = [f"{RESULTS}/figures/loss.svg", f"{RESULTS}/figures/bits_per_byte.svg", f"{RESULTS}/figures/accuracy.svg"]

# `pretrain`, `finetune` and `average_weights` make the same files for different runs. An unknown run matches pretrain,
# whose input functions then name it.
TUNED_RUNS = tuned_runs(CONFIG["runs"])
AVERAGED_RUNS = [name for name, run in CONFIG["runs"].items() if AVERAGE in run]
TUNED, AVERAGED = ("|".join(map(re.escape, names)) or r"(?!)" for names in (TUNED_RUNS, AVERAGED_RUNS))
PRETRAINED = rf"(?!(?:{TUNED}|{AVERAGED})/)[^/]+"


def named(section, name):
    """Return one entry of a section of the config. WorkflowError lists the known ones."""
    if name not in CONFIG.get(section, {}):
        known = ", ".join(sorted(CONFIG.get(section, {}))) or "none"
        raise WorkflowError(f"the config has no {section}.{name}; {section}: {known}")
    return CONFIG[section][name]


# Of each run the names of its milestones in paths, {name: number of steps or epochs}
MILESTONES = {
    name: {file_name(run, milestone): milestone for milestone in milestones_of(run)}
    for name, run in CONFIG["runs"].items()
}


def step_name(run, milestone):
    """Return a milestone of a run as its paths have it."""
    return file_name(named("runs", run), milestone)


def milestone(wildcards):
    """Return the milestone of a rule's wildcards. WorkflowError if the run has none with this name."""
    milestones = MILESTONES.get(wildcards.run) or named("runs", wildcards.run)
    if wildcards.step not in milestones:
        asked, *known = (name.lstrip("0") for name in (wildcards.step, *milestones))
        raise WorkflowError(f"run {wildcards.run} has no milestone {asked}; its milestones: {', '.join(known)}")
    return milestones[wildcards.step]
