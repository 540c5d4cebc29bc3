"""Where everything lies: the manifests that rules make, and the functions that name a rule's inputs."""

LIST = "results/sources/{source}/list.json"
TOKENIZER = "results/tokenizers/{tokenizer}/manifest.json"
PART = "results/tokens/{corpus}/{source}/{part}.json"
CORPUS = "results/tokens/{corpus}/manifest.json"
MODEL = "results/runs/{run}/models/{step}.json"
EXPORT = "results/runs/{run}/export/{step}/manifest.json"
EVALUATION = "results/runs/{run}/eval/{step}/{suite}.json"
SCORES = "results/scores.csv"
TEXT = "results/summary.txt"
SUMMARY = "results/summary.json"
FIGURES = ["results/figures/loss.svg", "results/figures/bits_per_byte.svg", "results/figures/accuracy.svg"]


def shell_prefix():
    """What each job's shell does first; PYTHONSAFEPATH keeps a folder `stages` in the working directory out."""
    python = shlex.quote(str(Path(sys.executable).parent))
    home = shlex.quote(str(HOME))
    return (
        f"export CARAVAN={home} PYTHONPATH={home}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PATH={python}:$PATH; "
    )


def named(section, name):
    """One entry of a section of the config; WorkflowError names those that there are."""
    if name not in CONFIG[section]:
        known = ", ".join(sorted(CONFIG[section]))
        raise WorkflowError(f"the config has no {section}.{name}; {section}: {known}")
    return CONFIG[section][name]


def milestones_of(run):
    """The steps after which a run is converted and scored, increasing."""
    recipe = named("runs", run)["pretrain"]
    return recipe.get("milestones", [recipe["steps"]])


def eight(step):
    """A step as it stands in file names."""
    return f"{step:08d}"


def milestone(wildcards):
    """The step of a rule's wildcards. WorkflowError when the run has no such milestone."""
    step = int(wildcards.step)
    milestones = milestones_of(wildcards.run)
    if step not in milestones:
        known = ", ".join(map(str, milestones))
        raise WorkflowError(f"run {wildcards.run} has no milestone {step}; its milestones: {known}")
    return step


def tokenizer_lists(wildcards):
    """The lists of the sources from which a tokenizer takes its sample."""
    return expand(LIST, source=sorted(named("tokenizers", wildcards.tokenizer)["sample"]))


def tokenizer_of_corpus(wildcards):
    """The manifest of a corpus' tokenizer."""
    return expand(TOKENIZER, tokenizer=named("corpora", wildcards.corpus)["tokenizer"])


def list_of_part(wildcards):
    """The list of a part's source. WorkflowError when the corpus has no such source or part."""
    corpus = named("corpora", wildcards.corpus)
    if wildcards.source not in corpus["sources"]:
        raise WorkflowError(f"corpus {wildcards.corpus} has no source {wildcards.source}")
    if int(wildcards.part) >= parts_of(wildcards.corpus):
        raise WorkflowError(f"corpus {wildcards.corpus} has no part {int(wildcards.part)}")
    return expand(LIST, source=wildcards.source)


def parts_of(corpus):
    """The number of parts into which each source of a corpus is cut."""
    default = keys_of("corpora", "tokenize")["parts"]["default"]
    return named("corpora", corpus).get("tokenize", {}).get("parts", default)


def parts_of_corpus(wildcards):
    """The manifests of all parts of a corpus."""
    return expand(
        PART,
        corpus=wildcards.corpus,
        source=named("corpora", wildcards.corpus)["sources"],
        part=[f"{part:05d}" for part in range(parts_of(wildcards.corpus))],
    )


def corpus_of_run(wildcards):
    """The manifest of the corpus that a run trains on."""
    return expand(CORPUS, corpus=named("runs", wildcards.run)["corpus"])


def tokenizer_of_run(wildcards):
    """The manifest of the tokenizer of a run's corpus."""
    corpus = named("runs", wildcards.run)["corpus"]
    return expand(TOKENIZER, tokenizer=named("corpora", corpus)["tokenizer"])


def previous_milestone(wildcards):
    """The manifest of the milestone before; nothing for the first."""
    earlier = [step for step in milestones_of(wildcards.run) if step < milestone(wildcards)]
    return expand(MODEL, run=wildcards.run, step=eight(earlier[-1])) if earlier else []


def model_of_milestone(wildcards):
    """The manifest of the model that is exported."""
    return expand(MODEL, run=wildcards.run, step=eight(milestone(wildcards)))


def export_of_evaluation(wildcards):
    """The manifest of the export that is scored. WorkflowError when the run names no such suite."""
    if wildcards.suite not in suites_of(wildcards.run):
        raise WorkflowError(f"run {wildcards.run} has no suite {wildcards.suite}")
    milestone(wildcards)
    return expand(EXPORT, run=wildcards.run, step=wildcards.step)


def suites_of(run):
    """The names of the suites by which a run is scored."""
    return named("runs", run).get("suites", [])


def train_directory(wildcards, output):
    """The parent of a run's run directories; no rule declares it, so Snakemake never deletes what it holds."""
    return str(Path(output[0]).parent.parent / "train")


def previous_option(wildcards, input):
    """The option that names the milestone before; nothing for the first."""
    return ["--previous", input.previous] if input.get("previous") else []


def figures_directory(wildcards, output):
    """The directory of the figures."""
    return str(Path(output.loss).parent)


def all_tokenizers(wildcards):
    """The manifests of all tokenizers."""
    return expand(TOKENIZER, tokenizer=CONFIG["tokenizers"])


def all_corpora(wildcards):
    """The manifests of all corpora."""
    return expand(CORPUS, corpus=CONFIG["corpora"])


def all_models(wildcards):
    """The manifests of all milestones of all runs."""
    return [path for run in CONFIG["runs"] for path in expand(MODEL, run=run, step=map(eight, milestones_of(run)))]


def all_exports(wildcards):
    """The manifests of all exports of all runs."""
    return [path for run in CONFIG["runs"] for path in expand(EXPORT, run=run, step=map(eight, milestones_of(run)))]


def all_evaluations(wildcards):
    """The manifests of all evaluations of all runs."""
    return [
        path
        for run in CONFIG["runs"]
        for path in expand(EVALUATION, run=run, step=map(eight, milestones_of(run)), suite=suites_of(run))
    ]
