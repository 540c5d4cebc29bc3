"""Recipes of the stages, each one JSON of the keys that the user wrote, their other options, and their code."""

LONGEST_ARGUMENT = 128 * 1024  # bytes of an argument with its NUL
MODULES = list(dict.fromkeys(stage.module for stage in STAGES.values()))
CODE = {name.removeprefix("stages."): code for name, code in fingerprints(MODULES, HOME).items()}


def as_json(data):
    """Return JSON that is the same for the same data: in `params`, a changed text is a changed job."""
    return json.dumps(data, sort_keys=True)


def argument_of(data):
    """Return a recipe as the argument of a stage: JSON, or the path of a file with it if Linux takes no longer argument.

    The file's name has the digest of its content: in `params`, another recipe is another job. Each job writes it.
    """
    text = as_json(data)
    if len(text) < LONGEST_ARGUMENT:
        return text
    path = Path(".snakemake/caravan/recipes", f"{hashlib.sha256(text.encode()).hexdigest()}.json")
    if not workflow.dryrun and not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
    return str(path)


def rerun_on_code(rule_name):
    """Return the fingerprint of a rule's stage, if it reruns when its code changes; "" if it keeps its results."""
    stage = STAGES[rule_name]
    follows = stage.follows_code or CONFIG.get("rerun_on_code")
    return CODE[stage.module.removeprefix("stages.")] if follows else ""


def recipe_of(rule_name):
    """Return the function of `params` for a recipe that stands in the config as it is: at the key that the registry has."""
    section, name, *groups = STAGES[rule_name].config.split(".")

    def recipe(wildcards):
        keys = named(section, name.format(**dict(wildcards.items())))
        for group in groups:
            keys = keys.get(group) or {}
        return argument_of(keys)

    return recipe


def source_recipe(wildcards):
    """Identity keys of a source's recipe."""
    return argument_of(of_kinds(SourceRecipe, named("sources", wildcards.source), "identity"))


def source_operation(wildcards):
    """Operation keys of a source's recipe: they pass through `resources`, which triggers nothing."""
    return argument_of(of_kinds(SourceRecipe, named("sources", wildcards.source), "operation"))


def max_malformed_of_part(wildcards):
    """`max_malformed` of a part's source."""
    return str(max_malformed_of(wildcards.source))


def max_malformed_of_corpus(wildcards):
    """`max_malformed` of the sources of a corpus, as JSON."""
    return as_json({name: max_malformed_of(name) for name in named("corpora", wildcards.corpus)["sources"]})


def max_malformed_of(source):
    """Return `max_malformed` of a source by the config: its list may be older."""
    return named("sources", source).get("max_malformed", SourceRecipe.max_malformed)


def training_recipe(wildcards):
    """Identity keys of a run's recipe, with its model unless that is another run's.

    The shape that `model.from` names is not in it: that file is an input.
    """
    model = {key: value for key, value in named("runs", wildcards.run).get("model", {}).items() if key != "from"}
    return argument_of({**({"model": model} if model else {}), **training_keys(wildcards.run, "identity")})


def training_keys(run, *kinds):
    """Return the keys of these kinds that the user wrote for a run's training, as data."""
    recipe = named("runs", run)
    stage = training_of(recipe)
    return of_kinds(TRAININGS[stage], recipe[stage], *kinds)


def training_operation(wildcards):
    """Operation and horizon keys of a run: they pass through `resources`, which triggers nothing."""
    return argument_of(training_keys(wildcards.run, "operation", "horizon"))


def evaluate_recipe(wildcards):
    """Recipe of a suite."""
    return argument_of(recipe_of_suite(wildcards.suite))


def recipe_of_suite(suite):
    """Return the keys of a suite without its prompt-completion source, which is an input."""
    return {key: value for key, value in named("suites", suite).items() if key != "prompt_completion"}


def items_recipe(wildcards):
    """Recipe of the items of a suite."""
    return argument_of(items_recipe_of(wildcards.suite))


def items_recipe_of(suite):
    """Return the keys of a suite that its items depend on."""
    keys = ("tasks", "include_path", "trust_task_code")
    return {key: value for key, value in named("suites", suite).items() if key in keys}


def contamination_recipe(wildcards):
    """Recipe of the search for contaminated items. WorkflowError if the config has none."""
    if "contamination" not in CONFIG:
        raise WorkflowError("the config has no contamination: its keys say how contaminated items are found")
    return argument_of(CONFIG["contamination"])


def expected(wildcards):
    """Recipes of all runs by the config, with which summarize compares each manifest, and what its tables show."""
    runs = {run: expected_of_run(run, CONFIG["runs"][run]) for run in runs_of_all()}
    defaults = {stage: defaults_of_runs(stage, runs.values()) for stage in ("pretrain", "finetune")}
    sweeps = {name: [*sweep["runs"]] for name, sweep in CONFIG.get("sweeps", {}).items()}
    return as_json({"runs": runs, "code": CODE, "defaults": defaults, "sweeps": sweeps})


def defaults_of_runs(stage, runs):
    """Return the defaults of the keys of a stage that any of its runs sets: a new optional key changes nothing here."""
    defaults = defaults_of(TRAININGS[stage]) | defaults_of(Model, "model.")
    written = set().union(*(dotted(run.get(stage, {})) for run in runs))
    return {key: default for key, default in defaults.items() if key in written}


def expected_initial(run, initial):
    """Return what the config says of the model that a run starts from: its digest, or where its manifest lies."""
    if run in CHECKED.initial:
        return initial | {"digest": CHECKED.initial[run]}
    if "sweep" in initial:
        return initial | {"model": f"sweeps/{initial['sweep']}/best.json"}
    return initial | {"model": f"{initial['run']}/models/{step_name(initial['run'], initial['step'])}.json"}


def expected_of_run(run, recipe):
    """Return what the config says of one run, recipes as their manifests have them."""
    stage = training_of(recipe)
    training = identity_of(TRAININGS[stage], recipe[stage])
    model = {key: value for key, value in recipe.get("model", {}).items() if key != "from"}
    if model:
        training["model"] = identity_of(Model, model)
    return {
        stage: training,
        "model_config": recipe.get("model", {}).get("from"),
        "convert": identity_of(ConvertRecipe, recipe.get("convert", {})),
        "corpus": corpus_name(run),
        "milestones": [*MILESTONES[run]],
        "suites": {suite: identity_of(Suite, recipe_of_suite(suite)) for suite in recipe["suites"]},
        **({"average": recipe["average"]} if "average" in recipe else {}),
        **({"initial": expected_initial(run, recipe["initial"])} if "initial" in recipe else {}),
    }


def leaving_out_options(wildcards, input):
    """Return tokenize's options for the duplicates and the contaminated documents to filter; empty without them."""
    items = input.get("suite_items")
    options = [word for name in ("duplicates", "near_duplicates") for word in option_of(name)(wildcards, input)]
    options += ["--items", *([items] if isinstance(items, str) else items)] if items else []
    return shlex.join(options)


def option_of(name):
    """Return the function of `params` for the option with a file of an input; it returns [] if the input is empty."""

    def option(wildcards, input):
        return [f"--{name.replace('_', '-')}", str(input.get(name))] if input.get(name) else []

    return option


def initial_option(wildcards, input):
    """Return the option for the model that a run starts from; [] without one."""
    initial = named("runs", wildcards.run).get("initial", {})
    path = input.get("initial") or initial.get("path")
    given = ["--initial", path] if path else []
    return [*given, "--initial-config", initial["config"]] if "config" in initial else given


def licenses_option(wildcards):
    """Return the option for the licenses of a run's sources, as the config has them now; [] without any."""
    licenses = {source: CONFIG["sources"][source].get("license") for source in sources_of_run(wildcards.run)}
    given = [f"{source}={name}" for source, name in licenses.items() if name is not None]
    return ["--licenses", *given] if given else []


def directory_of_run(name):
    """Return the function of `params` for a directory of a run. No rule declares it, so Snakemake never deletes it."""

    def directory(wildcards, output):
        return str(Path(output[0]).parent.parent / name)

    return directory


def figures_directory(wildcards, output):
    """Directory of the figures."""
    return str(Path(output.figures[0]).parent)


def pages_directory(wildcards, output):
    """Directory of the pages of Snakemake's report."""
    return str(Path(output.answer).parent)


def config_files(wildcards):
    """Names of the config files, for the title of the report."""
    return ", ".join(map(str, workflow.overwrite_configfiles)) or "config/config.yaml"


def command_line(wildcards):
    """The command of this workflow, for the head of the report: its job runs in the process of the command."""
    return shown_command(sys.argv[1:])


def base64_lines(path):
    """Return a file as lines of base64, for report/workflow.rst."""
    return base64.encodebytes(Path(path).read_bytes()).decode()


def attempt_of_job(wildcards, attempt):
    """Return the number of a job's attempt, from 1."""
    return attempt


def tasks_of_suites():
    """Return the tasks of all suites, each once."""
    return list(dict.fromkeys(task for suite in CONFIG["suites"].values() for task in suite["tasks"]))


def trust_task_code():
    """Return the option of prefetch, if all suites with custom task files trust their code."""
    suites = CONFIG["suites"].values()
    trusting = [suite for suite in suites if suite.get("trust_task_code")]
    is_trusted = trusting and all(suite in trusting for suite in suites if "include_path" in suite)
    return ["--trust-task-code"] if is_trusted else []


def include_paths():
    """Return the directories with custom task files of all suites, each once."""
    return list(dict.fromkeys(suite["include_path"] for suite in CONFIG["suites"].values() if "include_path" in suite))


def threads_of_job(wildcards, threads):
    """Threads per process of a job that starts one process, unless the profile sets `omp_threads`."""
    return threads
