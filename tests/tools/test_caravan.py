"""The command `caravan`: which command line each word stands for, from any directory."""

import os
import subprocess
import sys
import tomllib

import pytest

from stages.lib.errors import UserError
from tests.workflow.checkout import HOME
from tools import caravan
from tools.check.dry_run import is_local, profile_of

SNAKEMAKE = [sys.executable, "-m", "snakemake", "--snakefile", str(HOME / "workflow/Snakefile"), "--profile"]
LOCAL = str(HOME / "profiles/local")


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """A working directory with a config, a profile, and a folder `tools` that is not Caravan's."""
    monkeypatch.chdir(tmp_path)
    for name, text in (("my.yaml", "a: 1"), ("site/profile.yaml", "cores: 1"), ("tools/__init__.py", "raise OSError")):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("scores", [LOCAL, "scores"]),
        ("--profile slurm -n scores -R evaluate", [str(HOME / "profiles/slurm"), "-n", "scores", "-R", "evaluate"]),
        ("--profile=site all my.yaml", ["site", "all", "--configfile", "my.yaml"]),
        ("my.yaml -n all", [LOCAL, "-n", "all", "--configfile", "my.yaml"]),
        ("all a.b=1 my.yaml c.d=x", [LOCAL, "all", "--configfile", "my.yaml", "--config", 'set=["a.b=1", "c.d=x"]']),
        ("all --config a=1 --configfile x.yaml", [LOCAL, "all", "--config", "a=1", "--configfile", "x.yaml"]),
        ("results/scores.csv", [LOCAL, "results/scores.csv"]),
    ],
)
def test_run_is_snakemake_with_this_checkouts_snakefile(words, expected):
    assert caravan.command_of(["run", *words.split()]) == [*SNAKEMAKE, *expected]


def test_a_profile_of_either_name_is_one(place):
    (place / "site/profile.yaml").rename(place / "site/config.yaml")
    assert profile_of("site") == "site" and is_local("site")
    (place / "site/config.yaml").write_text("executor: slurm")
    assert not is_local("site")


def test_other_words_are_tools_and_stages_and_none_shows_all(capsys):
    assert caravan.command_of(["status", "--results", "x"])[1:] == ["-m", "tools.status", "--results", "x"]
    assert caravan.main([]) == 0
    assert "Commands: run, ablate, average_weights, check, " in capsys.readouterr().out
    assert caravan.command_of(["pretrain"])[1:] == ["-m", "stages.pretrain"]
    names = {path.stem for folder in ("tools", "stages") for path in (HOME / folder).glob("[!_]*.py")}
    names |= {path.parent.name for path in (HOME / "tools").glob("*/__main__.py")}
    assert {"check", "push", "pretrain"} < names and set(caravan.known()) == names - {"caravan", "registry"}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["statu"], "the command must be one of run, ablate, "),
        (["run", "none.yaml"], "none.yaml cannot be read"),
        (["run", "--profile", "none"], "--profile must be a directory with a profile.yaml, or one of "),
        (["run", "--profile"], "--profile must be followed by"),
    ],
)
def test_mistake_is_one_sentence(words, sentence, capsys):
    with pytest.raises(UserError) as refused:
        caravan.command_of(words)
    assert str(refused.value).startswith(sentence)
    assert caravan.main(words) == 2
    assert capsys.readouterr().err == f"caravan: {refused.value}\n"


def test_installed_script_finds_its_tools_from_any_directory(place):
    script = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["scripts"]["caravan"]
    module, function = script.split(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"  # as pip's script does
    environment = os.environ | {"PYTHONPATH": str(HOME), "PYTHONSAFEPATH": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code, "status"], cwd=place, env=environment, capture_output=True, text=True, check=False
    )
    assert "results" in done.stdout + done.stderr and "Traceback" not in done.stderr
