"""The requirements files pin what pyproject.toml declares."""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

HOME = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = {
    "requirements.txt": PROJECT["dependencies"],
    "requirements-dev.txt": PROJECT["dependencies"] + PROJECT["optional-dependencies"]["dev"],
}
# Packages whose import name differs from their distribution name.
IMPORTED_AS = {"yaml": "pyyaml", "fms": "ibm-fms", "fasttext": "fasttext-predict", "sklearn": "scikit-learn"}


def pinned(name):
    """Return `{package: version}` of a requirements file."""
    lines = [line.split("#")[0].split(";")[0].strip() for line in (HOME / name).read_text().splitlines()]
    return dict(line.split("==") for line in lines if line)


def canonical(requirement):
    """Return the canonical name of a requirement, and its pinned version or None."""
    name, version = re.fullmatch(r"([A-Za-z0-9_.-]+)(?:\[.*\])?(?:==([^;]+))?(?:;.*)?", requirement.strip()).groups()
    return re.sub(r"[-_.]+", "-", name).lower(), version and version.strip()


@pytest.mark.parametrize("name", DECLARED)
def test_lines_are_exact_pins_of_what_is_declared_with_its_markers(name):
    lines = (HOME / name).read_text(encoding="utf-8").splitlines()
    for line in filter(None, lines):
        assert line.startswith("#") or re.match(r"[a-z0-9-]+==[0-9][0-9a-z.]*( |$)", line), line
        assert "/" not in line.split("#")[0] and "+cpu" not in line
    markers = {line.split("==")[0]: line.split("#")[0].partition(";")[2].strip() for line in lines if "==" in line}
    pins = pinned(name)
    for requirement in DECLARED[name]:
        package, version = canonical(requirement)
        assert package in pins and version in (None, pins[package]), "run `make lock`"
        assert markers[package] == requirement.partition(";")[2].strip(), "run `make lock`"


def test_both_files_agree_and_conda_installs_the_same():
    assert pinned("requirements.txt").items() <= pinned("requirements-dev.txt").items()
    *packages, pip = yaml.safe_load((HOME / "environment.yml").read_text())["dependencies"]
    assert packages == ["python=3.11", "pip"]
    assert [word.split(" #")[0] for word in pip["pip"]] == ["-r requirements.txt", "-e ."]


def imported(folder):
    """Return the third-party packages that the files of a folder import."""
    ours = {"stages", "tests", "workflow", "tools", "scripts", "snakemake_logger_plugin_caravan", "_typeshed"}
    names = set()
    for path in (HOME / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names.add(node.module.split(".")[0])
    names -= {"snakemake_interface_executor_plugins"}  # a part of Snakemake
    return {IMPORTED_AS.get(name, name).replace("_", "-") for name in names - ours - sys.stdlib_module_names}


def test_imported_packages_are_declared():
    optional = PROJECT["optional-dependencies"]
    declared = {canonical(requirement)[0] for requirement in PROJECT["dependencies"] + optional["wandb"]}
    assert imported("stages") | imported("tools") | imported("workflow") <= declared


def test_make_prints_one_clear_line_if_python_is_too_old(tmp_path):
    old = tmp_path / "python3.8"
    old.write_text('#!/bin/sh\n[ "$1" = --version ] && echo Python 3.8.2 && exit 0\nexit 1\n')
    old.chmod(0o755)
    (tmp_path / "Makefile").write_text((HOME / "Makefile").read_text())
    (tmp_path / "requirements.txt").touch()
    done = subprocess.run(["make", "demo", f"PYTHON={old}"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert f"Caravan needs Python 3.11 or later, {old} is Python 3.8.2" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_installation_that_copies_the_packages_is_refused_in_one_sentence(tmp_path):
    packages = tomllib.loads((HOME / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    for name in ("pyproject.toml", "setup.py", "README.md", *(f"{package}/__init__.py" for package in packages)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((HOME / name).read_bytes())

    def build(kind):
        code = f"from setuptools import build_meta; build_meta.build_{kind}('wheels')"
        return subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)

    copied = build("wheel")
    assert (copied.returncode, copied.stderr.splitlines()[-1]) == (
        1,
        "caravan runs from its checkout and cannot be installed as a copy: use `pip install -e .` instead",
    )
    assert not list(tmp_path.glob("wheels/*"))
    assert build("editable").returncode == 0


@pytest.mark.long
def test_tools_run_in_every_directory_with_the_python_of_the_environment(tmp_path):
    target = tmp_path / "venv/path.stamp"
    subprocess.run(["make", f"VENV={tmp_path}/venv", f"PYTHON={sys.executable}", target], cwd=HOME, check=True)
    command = [tmp_path / "venv/bin/python", "-c", "import tools; print(tools.__file__)"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said == f"{HOME}/tools/__init__.py\n"
