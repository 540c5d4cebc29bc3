"""The requirements files pin what pyproject.toml declares."""

import ast
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
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


def test_files_of_pixi_and_conda_are_fresh_and_pin_the_same(tmp_path):
    script = [sys.executable, HOME / "workflow/scripts/generate_environments.py", tmp_path]
    subprocess.run(script, check=True)
    for name in ("pixi.toml", "workflow/envs/caravan.yml"):
        assert (tmp_path / name).read_text() == (HOME / name).read_text(), "run `make lock`"
    pixi = tomllib.loads((HOME / "pixi.toml").read_text())["pypi-dependencies"]
    assert pixi.pop("caravan") == {"path": ".", "editable": True}
    conda = yaml.safe_load((HOME / "workflow/envs/caravan.yml").read_text())["dependencies"][-1]["pip"]
    pins = pinned("requirements.txt")
    assert {name: version.removeprefix("==") for name, version in pixi.items()} == pins
    assert dict(line.split("==") for line in conda) == pins


def test_the_lock_of_uv_has_the_pinned_versions_of_what_is_declared_and_only_public_addresses():
    text = (HOME / "uv.lock").read_text(encoding="utf-8")
    assert set(re.findall(r"\w+://[^/\"]+", text)) == {"https://pypi.org", "https://files.pythonhosted.org"}
    assert not re.search(r'version = "[^"]*\+', text)
    packages, locked = tomllib.loads(text)["package"], {}
    for package in packages:
        locked.setdefault(package["name"], set()).add(package.get("version"))
    for name in DECLARED:
        assert [pin for pin in pinned(name).items() if pin[1] not in locked.get(pin[0], ())] == [], "run `make lock`"
    (own,) = [package["metadata"]["requires-dist"] for package in packages if package["name"] == "caravan"]
    extras = [requirement for extra in PROJECT["optional-dependencies"].values() for requirement in extra]
    assert {entry["name"] for entry in own} == {canonical(name)[0] for name in PROJECT["dependencies"] + extras}


def test_make_env_installs_from_a_wheelhouse_and_names_a_wheel_that_it_lacks(tmp_path):
    (tmp_path / "Makefile").write_text((HOME / "Makefile").read_text())
    (tmp_path / "requirements.txt").write_text("tiny==1.0\n")
    (tmp_path / "wheels").mkdir()
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / ".venv"], check=True)
    packages = sysconfig.get_path("purelib")  # with pip: to install it takes seconds
    (found,) = (tmp_path / ".venv/lib").glob("python*/site-packages")
    (found / "pip.pth").write_text(packages + "\n")
    environment = {"PATH": os.environ["PATH"], "PIP_CONFIG_FILE": os.devnull}

    def make(folder="wheels"):
        command = ["make", "--no-print-directory", "env", f"WHEELS={folder}"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    done = make()
    version = f"Python {platform.python_version()}"
    advice = "run `make wheelhouse` with network and the same Python, and copy its directory here"
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        f"make: wheels has no wheel of tiny==1.0 for {version}; {advice}",
    )
    assert "make: WHEELS must be a directory, got elsewhere" in make("elsewhere").stderr
    with zipfile.ZipFile(tmp_path / "wheels/tiny-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny.py", "")
        wheel.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        wheel.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("tiny-1.0.dist-info/RECORD", "")
    done = make()
    assert done.returncode == 0, done.stderr
    assert (found / "tiny.py").exists()


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
