"""Words of command lines: the prefix of each job's shell, the workflow's command as the report shows it, profiles."""

import argparse
import os
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

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
