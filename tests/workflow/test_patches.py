"""Patches for Snakemake's Slurm plugin apply to the pinned version; their tests pass with them and fail without."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import snakemake_executor_plugin_slurm as plugin

from tests.workflow.checkout import HOME

PATCHES = sorted((HOME / "docs/patches").glob("*.patch"))


def outcome(folder):
    """Run the tests of the patches with the plugin of a folder: {test file: whether all of it passed}."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", "tests"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    results = re.findall(r"^(PASSED|FAILED|ERROR) tests/(\w+)\.py", done.stdout, re.M)
    assert results, done.stdout + done.stderr
    return {name: all(result == "PASSED" for result, of in results if of == name) for _, name in results}


@pytest.mark.long
def test_patches_apply_and_their_tests_pass_with_them_alone(tmp_path):
    for name in ("without", "with"):
        shutil.copytree(Path(plugin.__file__).parent, tmp_path / name / Path(plugin.__file__).parent.name)
        for patch in PATCHES:
            only = ["--include=tests/*"] if name == "without" else []
            subprocess.run(["git", "apply", *only, patch], cwd=tmp_path / name, check=True)
    assert set(outcome(tmp_path / "with").values()) == {True}
    assert set(outcome(tmp_path / "without").values()) == {False}
    assert len(outcome(tmp_path / "with")) == len(PATCHES)


def test_patches_name_the_pinned_version():
    project = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
    (version,) = re.findall(r"snakemake-executor-plugin-slurm==(\S+?)'", str(project["dependencies"]))
    assert PATCHES and all(f"snakemake-executor-plugin-slurm {version}:" in patch.read_text() for patch in PATCHES)
