"""Where everything lies: the manifests that rules make, and the functions that name a rule's inputs."""

LIST = "results/sources/{source}/list.json"
TOKENIZER = "results/tokenizers/{tokenizer}/manifest.json"
PART = "results/tokens/{corpus}/{source}/{part}.json"
HASHES = "results/hashes/{corpus}/{source}/{part}.json"
DUPLICATES = "results/hashes/{corpus}/manifest.json"
CORPUS = "results/tokens/{corpus}/manifest.json"
MODEL = "results/runs/{run}/models/{step}.json"
EXPORT = "results/runs/{run}/export/{step}/manifest.json"
EVALUATION = "results/runs/{run}/eval/{step}/{suite}.json"
SCORES = "results/scores.csv"
TEXT = "results/summary.txt"
SUMMARY = "results/summary.json"
FIGURES = ["results/figures/loss.svg", "results/figures/bits_per_byte.svg", "results/figures/accuracy.svg"]

# `pretrain` and `finetune` make the same files, of other runs. A run that the config does not hold is pretrain's, which
# then says so.
TUNED_RUNS = tuned_runs(CONFIG["runs"])
TUNED = "|".join(map(re.escape, TUNED_RUNS)) or r"(?!)"
UNTUNED = rf"(?!(?:{TUNED})/)[^/]+"


def shell_prefix():
    """What each job's shell does first; PYTHONSAFEPATH keeps a folder `stages` in the working directory out.

    On Slurm, the site's own file comes before: what it loads shall not hide this Python. `launch` reads
    CARAVAN_CONTAINER by itself.
    """
    python = shlex.quote(str(Path(sys.executable).parent))
    home = shlex.quote(str(HOME))
    # modules of some sites do not bear `set -u`
    site = 'set +u; . "${CARAVAN_SITE:-$CARAVAN/profiles/slurm/environment.sh}"; set -u'
    return (
        f"export CARAVAN={home}; [[ -z ${{SLURM_JOB_ID-}} ]] || {{ {site}; }}; "
        f"export PYTHONPATH={home}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PATH={python}:$PATH; "
        '[[ -z ${CARAVAN_CONTAINER-} ]] || python() { $CARAVAN_CONTAINER python "$@"; }; '
    )


def named(section, name):
    """One entry of a section of the config; WorkflowError names those that there are."""
    if name not in CONFIG[section]:
        known = ", ".join(sorted(CONFIG[section]))
        raise WorkflowError(f"the config has no {section}.{name}; {section}: {known}")
    return CONFIG[section][name]


def eight(step):
    """A step as it stands in file names."""
    return f"{step:08d}"


def milestone(wildcards):
    """The step of a rule's wildcards. WorkflowError when the run has no such milestone."""
    step = int(wildcards.step)
    milestones = milestones_of(named("runs", wildcards.run))
    if step not in milestones:
        known = ", ".join(map(str, milestones))
        raise WorkflowError(f"run {wildcards.run} has no milestone {step}; its milestones: {known}")
    return step


def tokenizer_lists(wildcards):
    """The lists of the sources from which a tokenizer takes its sample; none for one that is taken as it is."""
    return expand(LIST, source=sorted(named("tokenizers", wildcards.tokenizer).get("sample", {})))


def tokenizer_file(wildcards):
    """The tokenizer.json that is taken, where one is: a change of it makes anew what depends on it."""
    name, tokenizer = wildcards.tokenizer, named("tokenizers", wildcards.tokenizer)
    if "path" not in tokenizer:
        return []
    if not Path(tokenizer["path"]).is_file():
        raise WorkflowError(f"tokenizers.{name}.path must be a file, and there is none at {tokenizer['path']}")
    return local(tokenizer["path"])  # the user's, not the workflow's: no prefix of a module is put before it


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


def parts_of_wildcard(wildcards):
    """The number of parts of a rule's corpus."""
    return parts_of(wildcards.corpus)


def of_all_parts(pattern, corpus):
    """A file for each part of a corpus."""
    sources, parts = named("corpora", corpus)["sources"], range(parts_of(corpus))
    return expand(pattern, corpus=corpus, source=sources, part=[f"{part:05d}" for part in parts])


def parts_of_corpus(wildcards):
    """The manifests of all parts of a corpus."""
    return of_all_parts(PART, wildcards.corpus)


def hashes_of_corpus(wildcards):
    """The manifests of the hashes of all parts of a corpus."""
    return of_all_parts(HASHES, wildcards.corpus)


def duplicates_of_corpus(wildcards):
    """What find_duplicates makes for a corpus; nothing where duplicates are kept."""
    drops = named("corpora", wildcards.corpus).get("tokenize", {}).get("duplicates") == "drop"
    return expand(DUPLICATES, corpus=wildcards.corpus) if drops else []


def corpus_name(run):
    """The name of the corpus of a run. WorkflowError when there is no such run."""
    named("runs", run)
    return corpus_of(CONFIG["runs"], run)


def corpus_of_run(wildcards):
    """The manifest of the corpus that a run, or the one that it is tuned from, trains on."""
    return expand(CORPUS, corpus=corpus_name(wildcards.run))


def tokenizer_of_run(wildcards):
    """The manifest of the tokenizer of a run's corpus."""
    return expand(TOKENIZER, tokenizer=named("corpora", corpus_name(wildcards.run))["tokenizer"])


def prompt_completion_of_run(wildcards):
    """The list of the source of pairs that a run is tuned on."""
    return expand(LIST, source=named("runs", wildcards.run)["prompt_completion"])


def initial_of_run(wildcards):
    """The manifest of the model that a run goes on from; nothing where it is none of another run."""
    initial = named("runs", wildcards.run).get("initial", {})
    return expand(MODEL, run=initial["run"], step=eight(initial["step"])) if "run" in initial else []


def previous_milestone(wildcards):
    """The manifest of the milestone before; nothing for the first."""
    earlier = [step for step in milestones_of(named("runs", wildcards.run)) if step < milestone(wildcards)]
    return expand(MODEL, run=wildcards.run, step=eight(earlier[-1])) if earlier else []


def model_of_milestone(wildcards):
    """The manifest of the model that is exported."""
    return expand(MODEL, run=wildcards.run, step=eight(milestone(wildcards)))


def export_of_evaluation(wildcards):
    """The manifest of the export that is scored. WorkflowError when neither its run nor one tuned from it names it."""
    suites = {*named("runs", wildcards.run)["suites"]}
    for run in tuned_from(wildcards.run, milestone(wildcards)):
        suites.update(CONFIG["runs"][run]["suites"])
    if wildcards.suite not in suites:
        raise WorkflowError(f"run {wildcards.run} has no suite {wildcards.suite}")
    return expand(EXPORT, run=wildcards.run, step=wildcards.step)


def prompt_completion_of_suite(wildcards):
    """The list of the source of pairs that a suite asks of; nothing where it asks of none."""
    suite = named("suites", wildcards.suite)
    return expand(LIST, source=suite["prompt_completion"]) if "prompt_completion" in suite else []


def train_directory(wildcards, output):
    """The parent of a run's run directories; no rule declares it, so Snakemake never deletes what it holds."""
    return str(Path(output[0]).parent.parent / "train")


def previous_option(wildcards, input):
    """The option that names the milestone before; nothing for the first."""
    return ["--previous", input.previous] if input.get("previous") else []


def initial_option(wildcards, input):
    """The option that names the model that a run goes on from; nothing without one."""
    path = input.get("initial") or named("runs", wildcards.run).get("initial", {}).get("path")
    return ["--initial", path] if path else []


def prompt_completion_option(wildcards, input):
    """The option that names the source of pairs of a suite; nothing where it asks of none."""
    return ["--prompt-completion", input.prompt_completion] if input.get("prompt_completion") else []


def figures_directory(wildcards, output):
    """The directory of the figures."""
    return str(Path(output.loss).parent)


def all_tokenizers(wildcards):
    """The manifests of all tokenizers."""
    return expand(TOKENIZER, tokenizer=CONFIG["tokenizers"])


def all_corpora(wildcards):
    """The manifests of all corpora."""
    return expand(CORPUS, corpus=CONFIG["corpora"])


def tuned_from(run, step):
    """The names of the runs that are tuned from a milestone of another."""
    return [name for name in TUNED_RUNS if CONFIG["runs"][name]["initial"] == {"run": run, "step": step}]


def runs_of_all():
    """The names of the runs that a target without a name of its own means: tuned ones where the config says so."""
    without = [] if CONFIG.get("tune") else TUNED_RUNS
    return [run for run in CONFIG["runs"] if run not in without]


def of_milestones(pattern, run, **more):
    """The files of all milestones of a run."""
    return expand(pattern, run=run, step=map(eight, milestones_of(CONFIG["runs"][run])), **more)


def all_models(wildcards):
    """The manifests of all milestones of all runs."""
    return [path for run in runs_of_all() for path in of_milestones(MODEL, run)]


def all_exports(wildcards):
    """The manifests of all exports of all runs."""
    return [path for run in runs_of_all() for path in of_milestones(EXPORT, run)]


def all_evaluations(wildcards):
    """The manifests of all evaluations of all runs, each once."""
    return list(dict.fromkeys(path for run in runs_of_all() for path in evaluations_of(run)))


def all_tuned(wildcards):
    """The manifests of all evaluations of tuned runs. WorkflowError when there are none."""
    if not TUNED_RUNS:
        raise WorkflowError("the config has no tuned run: one with finetune in the place of pretrain")
    return list(dict.fromkeys(path for run in TUNED_RUNS for path in evaluations_of(run)))


def evaluations_of(run):
    """The manifests of a run's evaluations, and for a tuned one of those of the model that it is tuned from."""
    recipe, found = CONFIG["runs"][run], []
    if training_of(recipe) == "finetune" and "run" in recipe["initial"]:
        before = recipe["initial"]
        found = expand(EVALUATION, run=before["run"], step=eight(before["step"]), suite=recipe["suites"])
    return found + of_milestones(EVALUATION, run, suite=recipe["suites"])
