"""Imports: stages and tools use the library, tools the tools of their list, packages of the library those of theirs.

The lists stand in docs/architecture.md, for people and for this test.
"""

import ast
import functools
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.helpers import training
from tests.helpers.data_fixtures import tiny_corpus

HOME = Path(__file__).resolve().parents[1]
REGISTRY = "stages.registry"
STAGES = sorted(path for path in (HOME / "stages").glob("[!_]*.py") if path.stem != "registry")
TOOLS = sorted([*(HOME / "tools").glob("[!_]*.py"), *(HOME / "tools").glob("*/__main__.py")])
FILES_OF_TOOLS = sorted(path for path in (HOME / "tools").rglob("*.py") if path.name != "__init__.py")
LIBRARY = sorted((HOME / "stages/lib").rglob("[!_]*.py"))
OURS = LIBRARY + FILES_OF_TOOLS
WORKFLOW = sorted((HOME / "workflow").rglob("*.py"))
BASE = "base"  # the modules that lie directly in stages/lib
# folders that are one package with the folder around them
PART_OF = {"sources.kinds": "sources", "scoring.tasks": "scoring"}
WITHOUT_TORCH = (
    *("errors", "files", "log", "manifest", "mpi", "recipe", "recipe_schema", "space", "stage", "up_to_date"),
    *("checkpoints/commit", "checkpoints/model_files", "training/optimizers/schedule"),
)
HEAVY = {"torch", "transformers", "sentencepiece", "lm_eval", "datasets", "matplotlib"}


@functools.cache
def tree_of(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imports(path, top_level_only=False):
    """Yield the dotted names that a file imports; `from stages.lib import x` is stages.lib.x."""
    for node in tree_of(path).body if top_level_only else ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # may be an attribute of a module


def first(name):
    return name.split(".")[0]


def importers(paths, is_wrong):
    """{file: the names that it imports and must not}, of the files that import one. Tests compare it with {}."""
    found = {name_of(path): sorted({name for name in imports(path) if is_wrong(name)}) for path in paths}
    return {path: names for path, names in found.items() if names}


def name_of(path):
    return str(path.relative_to(HOME))


def package_of(path):
    """The package of a file of the library, dotted: stages/lib/training/metrics/profiler.py is in training.metrics."""
    folder = ".".join(path.relative_to(HOME / "stages/lib").parent.parts)
    return PART_OF.get(folder, folder) or BASE


def packages_that_are_used(path):
    """The packages that a file of the library imports from, without its own."""
    used = set()
    for name in imports(path):
        if name.startswith("stages.lib."):
            parts = name.split(".")[2:]
            while parts and not (HOME / "stages/lib" / Path(*parts)).is_dir():
                parts.pop()
            used.add(PART_OF.get(".".join(parts), ".".join(parts)) or BASE)
    return used - {package_of(path)}


def table_of_the_docs(title):
    """{first cell: the names in the last one} of the table of docs/architecture.md that begins with a title."""
    text = (HOME / "docs/architecture.md").read_text(encoding="utf-8")
    table = text[re.search(rf"^\| *{title} *\|.*\| *may use *\|$", text, re.M).end() :].split("\n\n")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.strip().splitlines()[1:]]
    return {name.strip("`"): set(re.findall(r"`([\w.]+)`", allowed)) for name, *_, allowed in rows}


PACKAGES = table_of_the_docs("package")


def check_layers(below):
    """Check that no import leads upward: {name: those that it uses}."""
    left = dict(below)
    while left:
        layer = [name for name, used in left.items() if not used & left.keys()]
        assert layer, f"among these are some that use each other in a circle: {sorted(map(str, left))}"
        for name in layer:
            del left[name]


def test_a_package_uses_the_packages_of_its_list_in_the_docs_and_they_have_layers():
    others = {name_of(path): packages_that_are_used(path) - PACKAGES[package_of(path)] for path in LIBRARY}
    assert {path: sorted(packages) for path, packages in others.items() if packages} == {}
    used = {package: set() for package in (BASE, *map(package_of, LIBRARY))}
    for path in LIBRARY:
        used[package_of(path)] |= packages_that_are_used(path)
    assert used == PACKAGES
    check_layers(PACKAGES)


def files_that_are_used(path):
    """The files of library and tools that a file imports from, also for type hints alone or within a function."""
    for name in imports(path):
        for parts in (name.split("."), name.split(".")[:-1]):  # a module, or an attribute of one
            file = HOME.joinpath(*parts).with_suffix(".py")
            if file in OURS and file != path:
                yield file
                break


def files_at_the_top(paths):
    """The files of the library that some files import before they do anything, directly or not."""
    seen, waiting = set(), list(paths)
    while waiting:
        for name in imports(waiting.pop(), top_level_only=True):
            for parts in range(2, 6):
                file = HOME.joinpath(*name.split(".")[:parts]).with_suffix(".py")
                if file in OURS and file not in seen and file.exists():
                    seen.add(file)
                    waiting.append(file)
    return seen


def test_no_files_import_each_other_in_a_circle():
    check_layers({path: set(files_that_are_used(path)) for path in OURS})


def test_packages_are_small():
    folders = [path.parent for path in [*OURS, *WORKFLOW, *(HOME / "workflow/rules").rglob("*.smk")]]
    assert folders.count(HOME / "stages/lib") <= 12
    assert {str(folder): folders.count(folder) for folder in folders if folders.count(folder) > 16} == {}


def test_a_stage_imports_only_the_library_and_nothing_imports_what_is_above_it():
    ours, outside = ("stages", "tools"), ("snakemake", "workflow", "scripts", "config", "profiles", "tests")
    assert importers(STAGES, lambda name: first(name) in ours and not name.startswith("stages.lib")) == {}
    allowed = re.compile(r"stages(\.lib\..*)?")
    assert importers(LIBRARY, lambda name: first(name) in (*ours, "benchmarks") and not allowed.fullmatch(name)) == {}
    assert importers(STAGES + OURS, lambda name: first(name) in outside) == {}
    assert {first(name) for name in imports(HOME / "stages/registry.py")} <= sys.stdlib_module_names


def test_a_tool_imports_only_the_library_and_the_tools_of_its_list():
    used = {}
    for path in FILES_OF_TOOLS:
        tool = path.relative_to(HOME / "tools").with_suffix("").parts[0]
        others = {name.split(".")[1] for name in imports(path) if first(name) == "tools"} - {tool}
        used |= {tool: used.get(tool, set()) | others} if others else {}
    assert used == table_of_the_docs("tool")
    of_stages = ("stages.lib", REGISTRY)
    assert importers(FILES_OF_TOOLS, lambda name: first(name) == "stages" and not name.startswith(of_stages)) == {}


def test_the_library_starts_no_stage():
    starts = re.compile(r"""["']-m["'],""")
    texts = {name_of(path): path.read_text(encoding="utf-8") for path in LIBRARY}
    assert [path for path, text in texts.items() if "subprocess" in text and starts.search(text)] == []


OF_RECIPES = {"numpy", "orjson", "jinja2"}
"""Packages that the modules of recipes import."""


def test_the_workflow_imports_no_stage_and_of_the_library_only_what_is_fast():
    allowed = ("stages.lib.", REGISTRY)
    assert importers(WORKFLOW, lambda name: first(name) in ("stages", "tools") and not name.startswith(allowed)) == {}
    used = {file for path in WORKFLOW for file in files_that_are_used(path)}
    for file in {*used, *files_at_the_top(used)}:
        packages = {first(name) for name in imports(file, top_level_only=True)} - sys.stdlib_module_names
        assert packages <= {"stages", *OF_RECIPES}, f"{name_of(file)}, which each job imports, imports {packages}"


def test_the_rules_import_no_stage():
    for path in [HOME / "workflow/Snakefile", *(HOME / "workflow").rglob("*.smk")]:
        assert not re.search(
            rf"(import|from) (?!{REGISTRY} |stages.lib)(stages|tools)", path.read_text(encoding="utf-8")
        )


@pytest.mark.parametrize("path", STAGES + TOOLS, ids=name_of)
def test_help_is_fast_since_nothing_heavy_is_imported_at_the_top(path):
    for file in {path, *files_at_the_top([path])}:
        for name in imports(file, top_level_only=True):
            assert first(name) not in HEAVY, f"{name_of(path)} imports {name} before it knows what to do"


def test_the_core_imports_no_torch():
    core = [HOME / f"stages/lib/{name}.py" for name in WITHOUT_TORCH]
    assert importers(core, lambda name: first(name) in HEAVY) == {}


PRETRAINING_NEEDS = {"torch", "numpy", "pyarrow", "safetensors"}
TORCH_NEEDS = {"torchgen", "functorch", "sympy", "mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "filelock"}


def test_pretraining_needs_nothing_but_torch_numpy_pyarrow_and_safetensors(tmp_path):
    corpus = tiny_corpus(tmp_path / "corpus")
    packages = tmp_path / "packages"
    packages.mkdir()
    for path in Path(sysconfig.get_path("purelib")).iterdir():
        if path.name.partition(".")[0] in PRETRAINING_NEEDS | TORCH_NEEDS | {"typing_extensions"}:
            (packages / path.name).symlink_to(path)
    # -S: what is installed is not found
    command = [sys.executable, "-S", "-m", "stages.pretrain", *training.options(corpus, tmp_path, 2)]
    environment = os.environ | {"PYTHONPATH": f"{HOME}:{packages}"}
    done = subprocess.run(command, cwd=HOME, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert training.milestone(tmp_path, 2).exists()
