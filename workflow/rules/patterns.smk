"""Paths of all manifests, and the entries and steps that their wildcards name."""

LIST = "results/sources/{source}/list.json"
TOKENIZER = "results/tokenizers/{tokenizer}/manifest.json"
PART = "results/tokens/{corpus}/{source}/{part}.json"
HASHES = "results/hashes/{corpus}/{source}/{part}.json"
DUPLICATES = "results/hashes/{corpus}/manifest.json"
CORPUS = "results/tokens/{corpus}/manifest.json"
ITEMS = "results/suites/{suite}/items.json"
OVERLAPS = "results/overlaps/{corpus}/{suite}/{source}/{part}.json"
CONTAMINATION = "results/contamination/{corpus}/{suite}.json"
MODEL = "results/runs/{run}/models/{step}.json"
EXPORT = "results/runs/{run}/export/{step}/manifest.json"
EVALUATION = "results/runs/{run}/eval/{step}/{suite}.json"
BASELINE = "results/baselines/{baseline}/{corpus}/{suite}.json"
CARD = "results/runs/{run}/export/{step}/card.json"
SCORES = "results/scores.csv"
TEXT = "results/summary.txt"
SUMMARY = "results/summary.json"
PAGE = "results/card.html"
PAGES = "results/pages/{category}.html"
FIGURES = ["results/figures/loss.svg", "results/figures/bits_per_byte.svg", "results/figures/accuracy.svg"]

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
