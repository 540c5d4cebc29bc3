"""Checks at the start, dry runs included, but not again in the jobs of a cluster: files, targets, recipes, results."""

# A workflow that imports this one may give its files another place.
IS_MODULE = Path(workflow.main_snakefile).resolve() != HOME / "workflow/Snakefile"


def wanted_files():
    """Return the files that the command line asks for; UserError for a target that does not exist."""
    found = []
    for target in workflow.dag_settings.targets or ["all"]:
        rules = [target] if target in ("all", *TARGETS) else []
        if target in ("all", "report") or as_in_plan(target) in [SCORES, TEXT, SUMMARY, PAGE, *FIGURES]:
            rules.append("summarize")
        for function in (part for name in rules for part in workflow.get_rule(name_of_rule(name)).input):
            found += function(None) if callable(function) else []
        if not rules and not workflow.is_rule(target):
            found.append(as_in_plan(target))
            check_file(found[-1])
    return found


def as_in_plan(target):
    """Return the path of a file as the plan has it: relative, unless `results` of the config is absolute."""
    return os.path.abspath(target) if os.path.isabs(RESULTS) else os.path.relpath(target)


def check_file(path):
    """Raise UserError if no rule makes a file that is wanted, or the config has no such run, milestone, ..."""
    place = str(workflow.modifier.path_modifier.apply_default_storage(path))  # of the local copy, as rules have it
    makers = [made for made in workflow.rules if made.is_producer(place)]
    if not makers and not Path(path).exists():
        names = ", ".join(["all", "report", "plan", *TARGETS])
        raise UserError(f"the target {path} must be one of {names}, or a file that a rule makes")
    for maker in makers:
        wildcards = SimpleNamespace(**maker.get_wildcards(place))
        for function in filter(callable, maker.input):
            function(wildcards)
        for section in ("source", "suite"):  # `list` and `list_items` have no input
            if section in vars(wildcards):
                named(f"{section}s", getattr(wildcards, section))


def ranks_of(stage):
    """Return the number of ranks by the profile, None if it is computed for each job.

    1 for `auto`: the job takes as many as fit the batch, and if any number fits, 1 does.
    """
    given = workflow.resource_settings.overwrite_resources.get(name_of_rule(stage), {})
    numbers = []
    for name, default in (("ranks", 1), ("nodes", 0)):
        raw = getattr(given.get(name), "raw", None)  # of a resource that is not set: None
        numbers.append(str(default if raw is None else raw))
    if numbers[0] == "auto":
        return 1
    return int(numbers[0]) * max(1, int(numbers[1])) if all(map(str.isdigit, numbers)) else None


def plan_to_check(files):
    """Return the input of `tools.check`. `files`: the files that the command line asks for."""
    needed = manifests_of(files)
    missing = {path for path in needed if not Path(path).exists()}
    recipes = recipes_to_check()
    lists_again = workflow.dag_settings.forceall or "list" in workflow.dag_settings.forcerun
    initial = {}
    for name, run in CONFIG["runs"].items():  # `path` and `config` of models at a path, and the stage that starts there
        if "path" in run.get("initial", {}) and of_milestones(MODEL, name)[0] in needed:
            initial[name] = run["initial"] | {"stage": training_of(run)}
    for where, part in recipes.items():
        ranks = ranks_of(part["stage"]) if not missing.isdisjoint(part.get("milestones", ())) else None
        if ranks is not None:
            part["ranks"] = ranks
            if any(resource_of(part["stage"], name) for name in ("device", "device_memory_gb")):
                part["planned"] = planned_run(where.removeprefix("runs.").rpartition(".")[0])
    return {
        "recipes": recipes,
        "sources": [f"sources.{name}" for name in CONFIG["sources"] if LIST.format(source=name) in missing],
        "lists": [] if lists_again else [f"sources.{name}" for name in CONFIG["sources"]],
        "manifests": needed,
        "initial": initial,
        "cache": ".snakemake/caravan",
    }


def check_all():
    """Check everything, and name what is odd. UserError or WorkflowError for a mistake."""
    check_profile()
    if workflow.storage_settings.default_storage_provider:
        check_below_storage(RESULTS)
    if not workflow.dryrun:
        check_writable(Path(RESULTS))
    plan = plan_to_check([] if IS_MODULE else wanted_files())
    checked = check_stages(plan, HOME)
    stale = [run for run in CONFIG["runs"] if not {*of_milestones(MODEL, run)}.isdisjoint(checked.stale)]
    others = sentence_of_others(RESULTS, CONFIG["runs"], stale, reruns_stale())
    for sentence in [*checked.warnings, *sentences_of_stale(checked.stale, reruns_stale()), *filter(None, [others])]:
        logger.warning(f"caravan: {sentence}")
    return checked


def check_profile():
    """Raise UserError for a profile of two files, and for keys that name rules which an importing workflow renamed."""
    check_profile_files(sys.argv[1:])
    settings = workflow.resource_settings
    named = {*settings.overwrite_resources, *settings.overwrite_threads, *workflow.group_settings.overwrite_groups}
    renamed = {rule: name_of_rule(rule) for rule in sorted(named) if not workflow.is_rule(rule)}
    renamed = {rule: new for rule, new in renamed.items() if new and workflow.is_rule(new) and new not in named}
    if renamed:
        raise UserError(
            f"the profile sets resources, threads or groups of {', '.join(renamed)}, which do not apply: this workflow "
            f"imports these rules as {', '.join(renamed.values())}; give them these names in the profile, or import "
            "them without `as`"
        )


def reruns_stale():
    """Return true unless the user excludes changed recipes from what triggers a rerun."""
    return RerunTrigger.PARAMS in workflow.rerun_triggers


def prepare_dag(*arguments, prepare=workflow._prepare_dag, **options):
    """Check everything, and let Snakemake prepare its plan: what is stale is planned again."""
    global CHECKED
    try:
        CHECKED = check_all()
    except (UserError, WorkflowError) as error:
        sys.exit(f"config: {error}")
    # Where jobs run changes no result: nothing is made again with --sdm, or without it.
    workflow.dag_settings.rerun_triggers = workflow.rerun_triggers - {RerunTrigger.SOFTWARE_ENV}
    made = prepare(*arguments, **options)
    if reruns_stale():
        workflow.dag.forcefiles.update(CHECKED.stale)
    return made


def without_checks(action, prepare=workflow._prepare_dag):
    """Return an action of Snakemake that plans nothing, with no check of a plan."""

    def act(*arguments):
        workflow._prepare_dag = prepare
        return action(*arguments)

    return act


# Snakemake has no hook between the command line's targets and the plan.
CHECKED = Checked()
if workflow.is_main_process:
    workflow._prepare_dag = prepare_dag
    workflow.unlock = without_checks(workflow.unlock)
    workflow.cleanup_metadata = without_checks(workflow.cleanup_metadata)
