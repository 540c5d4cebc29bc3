"""Command lines: the prefix of a job's shell, what starts it, the workflow's command in the report, profiles."""

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from snakemake.settings.types import DeploymentMethod

from stages.lib.errors import UserError
from stages.lib.sources import storage


def shell_prefix(home: Path, deployed: str | None = None) -> str:
    """Return the prefix for the checkout `home`, for Snakemake's `shell.prefix`.

    `deployed`: "apptainer" or "conda" if Snakemake starts the job's shell in such an environment, which has its own
    Python.

    Jobs find this checkout's stages and this Python, whatever the working directory holds and whether or not a virtual
    environment is active; PYTHONSAFEPATH keeps a folder `stages` in the working directory out. In a job of a scheduler
    the site's environment file comes first (site.sh), so that its modules do not hide this Python. `launch` reads
    CARAVAN_CONTAINER itself.
    """
    root = shlex.quote(str(home))
    paths = {None: shlex.quote(str(Path(sys.executable).parent)) + ":$PATH", "conda": "$CONDA_PREFIX/bin:$PATH"}
    container = 'python() { $CARAVAN_CONTAINER python "$@"; }'
    if deployed:
        twice = f"environment: --sdm {deployed} and the container of environment.sh both start jobs: omit one"
        container = f'{{ echo "{twice}" >&2; exit 2; }}'
    prefix = (
        f'export CARAVAN={root}; . "$CARAVAN/workflow/site.sh"; '
        f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PATH={paths.get(deployed, '$PATH')}; "
        f"[[ -z ${{CARAVAN_CONTAINER-}} ]] || {container}; "
    )
    return prefix.replace("{", "{{").replace("}", "}}")  # Snakemake formats the prefix together with the command


def shown_command(arguments: Iterable[str]) -> str:
    """Return the command line of Snakemake with *** for what is secret by the name of its option, or in a URL.

    The report, which has it, is shown to others.
    """
    words, is_secret = ["snakemake"], False
    for word in arguments:
        name, equals, _ = word.partition("=")
        names_secret = storage.is_credential(name.lstrip("-"))
        if equals and names_secret:
            words.append(f"{name}=***")
        else:
            hidden = storage.credential_of(word) or (is_secret and not word.startswith("-"))
            words.append("***" if hidden else word)
        if word.startswith("-"):
            is_secret = names_secret and not equals
    return shlex.join(words)


def check_profile_files(arguments: Sequence[str]) -> None:
    """Raise UserError if a profile of Snakemake's command line has both profile.yaml and config.yaml.

    Snakemake then reads the one that the file system lists first.
    """
    from snakemake.cli import get_profile_dir

    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--profile", "--workflow-profile", dest="profile", action="append")
    named = parser.parse_known_args(arguments)[0].profile or [os.environ.get("SNAKEMAKE_PROFILE", "none")]
    for directory, _ in filter(None, map(get_profile_dir, named)):
        if all((directory / name).is_file() for name in ("profile.yaml", "config.yaml")):
            raise UserError(
                f"the profile {directory} must have one file, and has profile.yaml and config.yaml: move your values "
                "to profile.yaml and delete config.yaml"
            )


IMAGE = "caravan.sif"
METHODS = {"conda": DeploymentMethod.CONDA, "apptainer": DeploymentMethod.APPTAINER}
USER_MISTAKE = 2


def deployed_by(workflow: Any) -> str | None:
    """Return "conda", "apptainer" or None: what starts the shell of a job, by the command line.

    Exits with a sentence in a Slurm job whose container has no srun, by which Snakemake starts the job's shell.
    """
    if "slurm-jobstep" in sys.argv and shutil.which("srun") is None:
        refuse(
            "slurm: the container of this job has no srun, by which Snakemake starts it: give no container to sbatch; "
            "CARAVAN_CONTAINER or CARAVAN_SRUN in profiles/slurm/environment.sh runs only Python in one"
        )
    methods = workflow.deployment_settings.deployment_method
    known = [name for name, method in METHODS.items() if method in methods]
    if len(known) > 1:
        refuse("--sdm must be conda or apptainer, got both: the image has all packages")
    return known[0] if known else None


def image_of(workflow: Any, home: Path) -> str:
    """Return the path of the image that `--sdm apptainer` runs jobs in; it also sees the checkout `home`.

    Exits with a sentence if the image is missing.
    """
    image = home / IMAGE
    if " " in str(image):  # Snakemake refuses it in words of its own
        refuse(f"apptainer: the checkout must have a path without spaces, got {home}")
    if not image.exists():
        refuse(
            f"apptainer: {image} does not exist; build it with `apptainer build {IMAGE} caravan.def`, or link an image "
            "to this name"
        )
    settings = workflow.deployment_settings
    bind = f"--bind {shlex.quote(str(home))}"
    if bind not in settings.apptainer_args:
        settings.apptainer_args = f"{settings.apptainer_args} {bind}".strip()
    return str(image)


def refuse(sentence: str) -> None:
    """End Snakemake with one sentence for a mistake of the user's."""
    print(sentence, file=sys.stderr)
    sys.exit(USER_MISTAKE)
