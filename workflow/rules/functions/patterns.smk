"""Paths of all manifests, and the entries and steps that their wildcards name."""

LIST = f"{RESULTS}/sources/{{source}}/list.json"
TOKENIZER = f"{RESULTS}/tokenizers/{{tokenizer}}/manifest.json"
PART = f"{RESULTS}/tokens/{{corpus}}/{{source}}/{{part}}.json"
HASHES = f"{RESULTS}/hashes/{{corpus}}/{{source}}/{{part}}.json"
DUPLICATES = f"{RESULTS}/hashes/{{corpus}}/manifest.json"
CORPUS = f"{RESULTS}/tokens/{{corpus}}/manifest.json"
ITEMS = f"{RESULTS}/suites/{{suite}}/items.json"
OVERLAPS = f"{RESULTS}/overlaps/{{corpus}}/{{suite}}/{{source}}/{{part}}.json"
CONTAMINATION = f"{RESULTS}/contamination/{{corpus}}/{{suite}}.json"
MODEL = f"{RESULTS}/runs/{{run}}/models/{{step}}.json"
EXPORT = f"{RESULTS}/runs/{{run}}/export/{{step}}/manifest.json"
EVALUATION = f"{RESULTS}/runs/{{run}}/eval/{{step}}/{{suite}}.json"
BASELINE = f"{RESULTS}/baselines/{{baseline}}/{{corpus}}/{{suite}}.json"
CARD = f"{RESULTS}/runs/{{run}}/export/{{step}}/card.json"
BEST = f"{RESULTS}/sweeps/{{sweep}}/best.json"
SCORES = f"{RESULTS}/scores.csv"
TEXT = f"{RESULTS}/summary.txt"
SUMMARY = f"{RESULTS}/summary.json"
PAGE = f"{RESULTS}/card.html"
PAGES = f"{RESULTS}/pages/{{category}}.html"
PLAN = f"{RESULTS}/plan.json"
PLAN_TEXT = f"{RESULTS}/plan.txt"
LOGS = f"{RESULTS}/logs"
FIGURES = [f"{RESULTS}/figures/loss.svg", f"{RESULTS}/figures/bits_per_byte.svg", f"{RESULTS}/figures/accuracy.svg"]

# `pretrain` and `finetune` make the same files for different runs. An unknown run matches pretrain, whose input
# functions then name it.
TUNED_RUNS = tuned_runs(CONFIG["runs"])
TUNED = "|".join(map(re.escape, TUNED_RUNS)) or r"(?!)"
UNTUNED = rf"(?!(?:{TUNED})/)[^/]+"


def named(section, name):
    """Return one entry of a section of the config. WorkflowError lists the known ones."""
    if name not in CONFIG[section]:
        known = ", ".join(sorted(CONFIG[section]))
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
