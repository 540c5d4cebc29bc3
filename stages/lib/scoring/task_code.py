"""Code in task files of lm-evaluation-harness, which must be trusted, and names in them that nobody has.

A tag !function runs Python; so can a metric that the harness does not have (the library evaluate imports its file or
repository), data that needs a script, a generation option of transformers, and a template of Jinja. `check` reads the
files before any job; `guarded` refuses the same where the harness builds its tasks, of whatever file or group they are.
"""

from __future__ import annotations

import contextlib
import difflib
import importlib.util
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stages.lib.errors import UserError

TAG = "!function"

BUILDERS = ("arrow", "cache", "conll", "csv", "json", "parquet", "text", "xml")
"""The modules of `datasets` that read data and run no code; `cache` is what was downloaded before."""

GENERATION_OPTIONS = {
    "until", "do_sample", "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens", "max_length",
    "min_length", "min_new_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "typical_p",
    "epsilon_cutoff", "eta_cutoff", "repetition_penalty", "presence_penalty", "frequency_penalty", "length_penalty",
    "no_repeat_ngram_size", "num_beams", "num_beam_groups", "diversity_penalty", "early_stopping", "penalty_alpha",
    "renormalize_logits", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "stop", "stop_token_ids",
    "ignore_eos", "seed", "skip_special_tokens", "spaces_between_special_tokens", "bad_words_ids", "suppress_tokens",
    "forced_eos_token_id",
}  # fmt: skip
"""The options of generation that are numbers and texts; others of transformers, like custom_generate, import code."""


@dataclass(frozen=True, kw_only=True)
class Trust:
    """The user's trust in the code of task files."""

    trusted: bool = False

    setting: str = "trust_task_code: true"
    """The setting by which the user trusts it, for messages."""

    own: Sequence[Path] = ()
    """Directories with task files of Caravan, whose code runs anyway."""


UNTRUSTED = Trust()


def check(directory: Path, trust: Trust) -> None:
    """Raise UserError if a task file below `directory`, or one that it includes, has code and is not trusted."""
    if trust.trusted:
        return
    with_code: dict[Path, bool] = {}
    for path in sorted(directory.rglob("*.yaml")):
        config = _merged(path.resolve(), with_code)
        if found := next((path for path, has_code in with_code.items() if has_code), None):
            raise UserError(
                f"{found} runs Python code ({TAG}): set {trust.setting} if you trust the task files of {directory}"
            )
        if isinstance(config.get("task"), str) and not {"group", "class"} & config.keys() and _harness() is not None:
            problem = _problem(config, trust)
            if problem is not None:
                raise UserError(f"{path}: {problem}")


def _merged(path: Path, with_code: dict[Path, bool]) -> dict[str, Any]:
    """Return the keys of a task file and of those that it includes, as the harness merges them, without running any.

    `with_code`: the files read before, and whether they have the tag.
    """
    if path in with_code or not path.is_file():
        return {}
    content, has_code = _content(path)
    with_code[path] = has_code and not is_of_harness(path)
    if not isinstance(content, dict):
        return {}
    included = content.pop("include", [])
    merged: dict[str, Any] = {}
    for name in included if isinstance(included, list) else [included]:
        merged |= _merged((path.parent / str(name)).resolve(), with_code)
    return merged | content


def _content(path: Path) -> tuple[Any, bool]:
    """Return the YAML of a file, a function in place of each tag, and whether it has the tag.

    Raises UserError for other text.
    """
    import yaml

    base: Any = yaml.CSafeLoader if getattr(yaml, "__with_libyaml__", False) else yaml.SafeLoader  # as the harness
    tags: list[str] = []

    class Loader(base):  # type: ignore[misc]
        pass

    def function(*_: Any) -> Callable[..., None]:
        tags.append(TAG)
        return _function_of_the_harness

    Loader.add_constructor(TAG, function)
    try:
        return yaml.load(path.read_bytes(), Loader) or {}, bool(tags)  # noqa: S506
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{path} must be a YAML file of a task: {reason:.300}") from None


def _function_of_the_harness() -> None:
    """Stand for a function that a file names; nothing calls it."""


def _harness() -> Path | None:
    """Return the directory of lm-evaluation-harness; None if it is not installed, since evaluate runs elsewhere."""
    spec = importlib.util.find_spec("lm_eval")
    homes = (spec.submodule_search_locations or ()) if spec else ()
    return next((Path(home).resolve() for home in homes), None)


def is_of_harness(path: Path) -> bool:
    """Return True for a file of lm-evaluation-harness itself: its code is installed, and runs anyway."""
    home = _harness()
    return home is not None and path.resolve().is_relative_to(home)


def _problem(config: Mapping[str, Any], trust: Trust) -> str | None:
    """Return why a task cannot be scored, or not without trust: something that the harness does not have, or code."""
    import lm_eval.api.metrics
    import lm_eval.filters  # noqa: F401
    from lm_eval.api import registry

    task = config.get("task")
    is_computed = callable(config.get("process_results"))  # then its metrics are names alone
    for entry in _entries(config.get("metric_list")):
        metric, aggregation = entry.get("metric"), entry.get("aggregation")
        of_evaluate = entry.get("hf_evaluate") is True or metric not in registry.metric_registry
        if isinstance(metric, str) and not is_computed and of_evaluate and not trust.trusted:
            return (
                f"metric {metric} of task {task} must be one of lm-evaluation-harness, without hf_evaluate"
                f"{_nearest(metric, registry.metric_registry)}: another runs Python code of the library evaluate or of "
                f"a file; set {trust.setting} if you trust it"
            )
        if aggregation is None and isinstance(metric, str) and metric not in registry.metric_agg_registry:
            return f"metric {metric} of task {task} must have an aggregation, which lm-evaluation-harness lacks for it"
        if aggregation is not None and not _is_known(aggregation, registry.aggregation_registry):
            return (
                f"aggregation {aggregation} of metric {metric} of task {task} must be one of lm-evaluation-harness"
                f"{_nearest(aggregation, registry.aggregation_registry)}"
            )
    for entry in _entries(config.get("filter_list")):
        for step in _entries(entry.get("filter")):
            problem = _problem_of_filter(step)
            if problem is not None:
                return f"filter {step.get('function')} of task {task} {problem}"
    return None if trust.trusted else _code_in_options(config, trust)


def _problem_of_filter(step: Mapping[str, Any]) -> str | None:
    """Return why the harness cannot build a filter, which it would try only after all answers were generated."""
    from lm_eval.api import registry

    function = step.get("function")
    if not _is_known(function, registry.filter_registry):
        return f"must be one of lm-evaluation-harness{_nearest(function, registry.filter_registry)}"
    try:
        registry.get_filter(function)(**{key: value for key, value in step.items() if key != "function"})
    except Exception as error:  # of the filter: a key it does not have, a regular expression that is not valid
        return f"cannot be built: {type(error).__name__}: {error}"
    return None


def _code_in_options(config: Mapping[str, Any], trust: Trust) -> str | None:
    """Return why the data, the prompts or the options of generation of a task would run code."""
    task, path = config.get("task"), config.get("dataset_path")
    if isinstance(path, str) and (path.endswith(".py") or Path(path, f"{Path(path).name}.py").is_file()):
        return f"dataset_path {path} of task {task} is Python code: set {trust.setting} if you trust it"
    if str(config.get("use_prompt", "")).startswith("promptsource:"):
        return f"use_prompt of task {task} renders promptsource without a sandbox: set {trust.setting} if you trust it"
    options = config.get("generation_kwargs")
    for name in sorted(set(options) - GENERATION_OPTIONS) if isinstance(options, Mapping) else ():
        return (
            f"generation_kwargs.{name} of task {task} is not an option of sampling, and can run Python code: "
            f"set {trust.setting} if you trust it"
        )
    return None


def _entries(listed: Any) -> list[Mapping[str, Any]]:
    return [entry for entry in listed if isinstance(entry, Mapping)] if isinstance(listed, list) else []


def _is_known(name: Any, names: Collection[str]) -> bool:
    return callable(name) or (isinstance(name, str) and name in names)


def _nearest(name: Any, names: Collection[str]) -> str:
    near = difflib.get_close_matches(str(name), [*names], n=1)
    return f" (nearest: {near[0]})" if near else f" ({', '.join(sorted(names))})"


@contextlib.contextmanager
def guarded(where: str, trust: Trust) -> Iterator[None]:
    """Let the harness build no task with names that nobody has, or with code that is not trusted: it raises UserError.

    Only then does the harness read all of a task's files, and a group can give a task other keys than its file.
    """
    import datasets.load
    from lm_eval.tasks import _factory, _yaml_loader

    class Checked(_factory.ConfigurableTask):
        """A task whose names are known."""

        def __init__(self, *arguments: Any, config: dict[str, Any] | None = None, **keywords: Any) -> None:
            problem = _problem(config or {}, trust)
            if problem is not None:
                raise UserError(f"{where}: {problem}")
            super().__init__(*arguments, config=config, **keywords)
            for metric, function in self._metric_fn_list.items():
                if function is None and not callable(self.config.process_results):
                    raise UserError(
                        f"{where}: metric {metric} of task {self.config.task} must be one of lm-evaluation-harness or "
                        f"of the library evaluate, which cannot load it"
                    )

    import_function, find_module = _yaml_loader._import_func_in_yml, datasets.load.dataset_module_factory
    homes = [directory.resolve() for directory in trust.own]

    def imported(name: str, directory: Path) -> Any:
        if not (is_of_harness(directory) or any(directory.resolve().is_relative_to(home) for home in homes)):
            raise UserError(f"{where}: {directory} has Python code ({name}): set {trust.setting} if you trust it")
        return import_function(name, directory)

    def module(path: str, *arguments: Any, **keywords: Any) -> Any:
        found = find_module(path, *arguments, **keywords)
        package, _, builder = found.module_path.rpartition(".")
        if not package.startswith("datasets.packaged_modules") or builder not in BUILDERS:
            raise UserError(
                f"{where}: dataset_path {path} is read by {builder}, and must be read by one of {', '.join(BUILDERS)}, "
                f"which run no code: set {trust.setting} if you trust it"
            )
        return found

    replaced: list[tuple[Any, str, Any]] = [(_factory, "ConfigurableTask", Checked)]
    if not trust.trusted:
        replaced += [(_yaml_loader, "_import_func_in_yml", imported), (datasets.load, "dataset_module_factory", module)]
    before = [(library, name, getattr(library, name)) for library, name, _ in replaced]
    try:
        for library, name, value in replaced:
            setattr(library, name, value)
        yield
    finally:
        for library, name, value in before:
            setattr(library, name, value)


def guard_templates() -> None:
    """Let the harness render the templates of tasks in Jinja's sandbox, where they reach no Python objects but data."""
    from jinja2.sandbox import SandboxedEnvironment
    from lm_eval import utils

    options = {name: getattr(utils.env, name) for name in ("loader", "undefined", "keep_trailing_newline")}
    guarded = SandboxedEnvironment(**options)
    guarded.filters.update(utils.env.filters)
    utils.env = guarded
