"""The commands that each job's shell runs first."""

import shlex
import sys
from pathlib import Path


def shell_prefix(home: Path) -> str:
    """Return the prefix for the checkout `home`, for Snakemake's `shell.prefix`.

    Jobs find this checkout's stages and this Python, whatever the working directory holds and whether or not a virtual
    environment is active; PYTHONSAFEPATH keeps a folder `stages` in the working directory out. In a job of Slurm or PBS
    the site's environment file comes first, so that its modules do not hide this Python. `launch` reads
    CARAVAN_CONTAINER itself.
    """
    python = shlex.quote(str(Path(sys.executable).parent))
    root = shlex.quote(str(home))
    # modules of some sites fail under `set -u`
    site = 'set +u; . "${CARAVAN_SITE:-$CARAVAN/profiles/$caravan_profile/environment.sh}"; set -u'
    prefix = (
        f"export CARAVAN={root}; caravan_profile=${{PBS_JOBID:+pbs}}; "
        "[[ -z ${SLURM_JOB_ID-} ]] || caravan_profile=slurm; "
        f"[[ -z $caravan_profile ]] || {{ {site}; }}; "
        f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PATH={python}:$PATH; "
        '[[ -z ${CARAVAN_CONTAINER-} ]] || python() { $CARAVAN_CONTAINER python "$@"; }; '
    )
    return prefix.replace("{", "{{").replace("}", "}}")  # Snakemake formats the prefix together with the command
