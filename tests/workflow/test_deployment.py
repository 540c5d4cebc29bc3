"""`--sdm apptainer` and `--sdm conda`, with stand-ins of both commands: jobs run there, and nothing is made again."""

import json
import sys

import pytest

from scripts import commands
from stages.registry import STAGES
from tests.workflow.checkout import HOME, copy_project, write_commands

TOKENIZER = "results/tokenizers/main/manifest.json"

# The image is a folder with a `python`. The stand-in starts the job's shell with this folder first on a fixed PATH.
APPTAINER = """
[[ $1 != --version ]] || { echo apptainer version 1.3.0; exit; }
echo "$@" >> called
shift
while [[ $1 == --* ]]; do shift 2; done
PATH=$1:/usr/bin:/bin exec "${@:2}"
"""
# `conda env create` makes a folder with a `python`, and bin/activate, which Snakemake sources, puts it on the PATH.
CONDA = """
folder=$(dirname "$0")
case "$1 $2" in
    "info --json") echo "{\\"conda_prefix\\": \\"$folder/..\\", \\"platform\\": \\"linux-64\\"}" ;;
    "config "*) echo '{"get": {"channel_priority": "strict"}}' ;;
    "--version "*) echo conda 25.1.0 ;;
    "env create")
        while [[ $1 != --prefix ]]; do shift; done
        mkdir -p "$2/bin" && cp "$folder/../image/python" "$2/bin"
        ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with fake stages (Snakemake refuses an image below a path with spaces), and both commands in bin."""
    (tmp_path / "checkout").mkdir()
    made = copy_project(tmp_path / "checkout")
    made.pretend(*STAGES.values())
    write_commands(tmp_path / "bin", {"apptainer": APPTAINER, "conda": CONDA})
    (tmp_path / "bin/activate").write_text('export CONDA_PREFIX="$1"\n')
    write_commands(tmp_path / "image", {"python": f'echo "$@" >> {tmp_path}/contained\nexec {sys.executable} "$@"'})
    return made


def run(checkout, *words, **variables):
    """Run Snakemake with the stand-ins on the PATH."""
    path = f"{checkout.path.parent}/bin:/usr/local/bin:/usr/bin:/bin"
    return checkout.snakemake(*words, environment={"PATH": path, **variables}, check=False)


@pytest.mark.parametrize("kind", ["apptainer", "conda"])
def test_jobs_run_in_the_environment_and_nothing_is_made_again_without_it(checkout, small, kind):
    (checkout.path / "caravan.sif").symlink_to("../image")
    given = ["tokenizers", "--profile", "profiles/local", "--configfile", checkout.write_config(small)]
    done = run(checkout, *given, "--sdm", kind)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((checkout.path / TOKENIZER).read_text())
    assert told["file"] == str(checkout.path / "stages/train_tokenizer.py")
    contained = (checkout.path.parent / "contained").read_text()
    assert "-m stages.list " in contained and "-m stages.train_tokenizer " in contained
    if kind == "apptainer":
        assert f"--bind {checkout.path} " in (checkout.path / "called").read_text(), "the image sees the checkout"
    for words in ([], ["--sdm", kind]):
        assert "Nothing to be done" in run(checkout, *given, "-n", *words).stdout


def test_a_missing_image_and_both_kinds_are_one_sentence(checkout):
    done = run(checkout, "-n", "tokenizers", "--sdm", "apptainer")
    sentence = (
        f"apptainer: {checkout.path}/caravan.sif does not exist; build it with `apptainer build caravan.sif "
        "caravan.def`, or link an image to this name"
    )
    assert (done.returncode, done.stderr.splitlines()[-1]) == (2, sentence)
    done = run(checkout, "-n", "tokenizers", "--sdm", "apptainer", "conda")
    sentence = "--sdm must be conda or apptainer, got both: the image has all packages\n"
    assert (done.returncode, done.stderr) == (2, sentence)


def test_a_container_in_the_environment_file_too_is_refused(checkout, small):
    (checkout.path / "caravan.sif").symlink_to("../image")
    given = ["tokenizers", "--profile", "profiles/local", "--configfile", checkout.write_config(small)]
    done = run(checkout, *given, "--sdm", "apptainer", CARAVAN_CONTAINER="env")
    assert done.returncode == 1 and not (checkout.path / TOKENIZER).exists()
    sentence = "environment: --sdm apptainer and the container of environment.sh both start jobs: omit one\n"
    assert sentence in done.stdout + done.stderr


def test_a_slurm_job_whose_container_has_no_srun_is_one_sentence(monkeypatch, tmp_path, capsys):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["snakemake", "--executor", "slurm-jobstep"])
    with pytest.raises(SystemExit) as end:
        commands.deployed_by(None)
    assert end.value.code == 2
    assert capsys.readouterr().err == (
        "slurm: the container of this job has no srun, by which Snakemake starts it: give no container to sbatch; "
        "CARAVAN_CONTAINER or CARAVAN_SRUN in profiles/slurm/environment.sh runs only Python in one\n"
    )


def test_both_images_have_the_same_steps():
    image, definition = ((HOME / name).read_text(encoding="utf-8") for name in ("Containerfile", "caravan.def"))
    run_lines = [line.removeprefix("RUN ") for line in image.splitlines() if line.startswith("RUN ")]
    assert len(run_lines) == 2 and all(f"    {line}\n" in definition for line in run_lines)
    base = image.split("ARG BASE=docker.io/library/")[1].split()[0]
    assert f"\nFrom: {base}\n" in definition


def test_an_image_in_a_path_with_a_space_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        commands.image_of(None, HOME / "a space")
    assert end.value.code == 2
    assert capsys.readouterr().err == f"apptainer: the checkout must have a path without spaces, got {HOME}/a space\n"
