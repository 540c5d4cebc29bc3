"""Options of a stage that are neither its recipe nor an input as it is."""


def leaving_out_options(wildcards, input):
    """Return tokenize's options for the duplicates and the contaminated documents to filter; empty without them."""
    duplicates, items = input.get("duplicates"), input.get("suite_items")
    options = ["--duplicates", str(duplicates)] if duplicates else []
    options += ["--items", *([items] if isinstance(items, str) else items)] if items else []
    return shlex.join(options)


def previous_option(wildcards, input):
    """Return the option for the milestone before; [] for the first."""
    return ["--previous", input.previous] if input.get("previous") else []


def initial_option(wildcards, input):
    """Return the option for the model that a run starts from; [] without one."""
    initial = named("runs", wildcards.run).get("initial", {})
    path = input.get("initial") or initial.get("path")
    given = ["--initial", path] if path else []
    return [*given, "--initial-config", initial["config"]] if "config" in initial else given


def model_config_option(wildcards, input):
    """Return the option for the config.json of the model's shape; [] if the config has the shape."""
    return ["--model-config", input.model_config] if input.get("model_config") else []


def prompt_completion_option(wildcards, input):
    """Return the option for the prompt-completion source of a suite; [] without one."""
    return ["--prompt-completion", input.prompt_completion] if input.get("prompt_completion") else []


def licenses_option(wildcards):
    """Return the option for the licenses of a run's sources, as the config has them now; [] without any."""
    licenses = {source: CONFIG["sources"][source].get("license") for source in sources_of_run(wildcards.run)}
    given = [f"{source}={name}" for source, name in licenses.items() if name is not None]
    return ["--licenses", *given] if given else []


def train_directory(wildcards, output):
    """Parent of a run's run directories. No rule declares it, so Snakemake never deletes its content."""
    return str(Path(output[0]).parent.parent / "train")


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
    return shlex.join(["snakemake", *sys.argv[1:]])


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
    return (
        ["--trust-task-code"]
        if any(suite.get("trust_task_code") for suite in suites)
        and all(suite.get("trust_task_code") for suite in suites if "include_path" in suite)
        else []
    )


def include_paths():
    """Return the directories with custom task files of all suites, each once."""
    return list(dict.fromkeys(suite["include_path"] for suite in CONFIG["suites"].values() if "include_path" in suite))


def threads_of_job(wildcards, threads):
    """Threads per process of a job that starts one process, unless the profile sets `omp_threads`."""
    return threads
