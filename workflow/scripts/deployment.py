"""The environment in which Snakemake runs the shells of jobs: `--sdm conda`, `--sdm apptainer`, or neither."""

import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

from snakemake.settings.types import DeploymentMethod

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
