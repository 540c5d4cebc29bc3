"""Who may know whom."""

import ast
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.helpers import training
from tests.helpers.data_fixtures import tiny_corpus

HOME = Path(__file__).resolve().parents[1]
STAGES = sorted((HOME / "stages").glob("[!_]*.py"))
LIBRARY = sorted((HOME / "stages/lib").rglob("[!_]*.py"))
WORKFLOW = sorted((HOME / "workflow").rglob("*.py"))
WITHOUT_TORCH = ("recipe", "manifest", "files", "log", "training/schedule", "errors", "stage")
HEAVY = {"torch", "transformers", "sentencepiece", "lm_eval", "datasets", "matplotlib"}


def imports(path, top_level_only=False):
    """The dotted names that a file imports; `from stages.lib import x` is stages.lib.x."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in tree.body if top_level_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)  # may be an attribute of a module


def first(name):
    return name.split(".")[0]


def name_of(path):
    return str(path.relative_to(HOME))


@pytest.mark.parametrize("path", STAGES, ids=name_of)
def test_a_stage_imports_only_the_library(path):
    ours = [name for name in imports(path) if first(name) == "stages"]
    assert all(name.startswith("stages.lib") for name in ours)


@pytest.mark.parametrize("path", LIBRARY, ids=name_of)
def test_the_library_imports_no_stage(path):
    ours = [name for name in imports(path) if first(name) == "stages"]
    assert all(name == "stages" or name.startswith("stages.lib") for name in ours)


@pytest.mark.parametrize(
    "path", [path for path in LIBRARY if path.parent.name in ("lib", "sources", "tokens")], ids=name_of
)
def test_what_all_stages_share_knows_nothing_of_the_loop(path):
    assert not [name for name in imports(path) if name.startswith("stages.lib.training")]


@pytest.mark.parametrize("path", STAGES + LIBRARY, ids=name_of)
def test_stages_know_nothing_of_the_workflow(path):
    assert not {first(name) for name in imports(path)} & {"snakemake", "workflow", "config", "profiles", "tests"}


@pytest.mark.parametrize("path", WORKFLOW, ids=name_of)
def test_the_workflow_imports_no_stage(path):
    assert "stages" not in {first(name) for name in imports(path)}


def test_the_rules_import_no_stage():
    for path in [HOME / "workflow/Snakefile", *(HOME / "workflow").rglob("*.smk")]:
        text = path.read_text(encoding="utf-8")
        assert "import stages" not in text and "from stages" not in text


# pretrain and finetune are torch from end to end.
@pytest.mark.parametrize("path", [path for path in STAGES if path.stem not in ("pretrain", "finetune")], ids=name_of)
def test_help_is_fast_since_a_stage_imports_nothing_heavy_at_its_top(path):
    seen, waiting = set(), [path]
    while waiting:
        for name in imports(waiting.pop(), top_level_only=True):
            assert first(name) not in HEAVY, f"{name_of(path)} imports {name} before it knows what to do"
            for parts in range(3, 5):
                file = HOME.joinpath(*name.split(".")[:parts]).with_suffix(".py")
                if name.startswith("stages.lib") and file not in seen and file.exists():
                    seen.add(file)
                    waiting.append(file)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_the_core_imports_no_torch(name):
    assert not {first(name) for name in imports(HOME / f"stages/lib/{name}.py")} & HEAVY


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
