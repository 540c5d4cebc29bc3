"""The commands that each job's shell runs first."""

import shlex
import sys
from pathlib import Path

PROFILES = {"LSB_JOBID": "lsf", "PBS_JOBID": "pbs", "SLURM_JOB_ID": "slurm", "FLUX_JOB_ID": "flux"}
"""{variable of a scheduler's jobs: folder of profiles/ whose environment.sh they read}. The last one that is set wins:
a Flux may run in a job of another scheduler."""


def shell_prefix(home: Path) -> str:
    """Return the prefix for the checkout `home`, for Snakemake's `shell.prefix`.

    Jobs find this checkout's stages and this Python, whatever the working directory holds and whether or not a virtual
    environment is active; PYTHONSAFEPATH keeps a folder `stages` in the working directory out. In a job of a scheduler
    the site's environment file comes first, so that its modules do not hide this Python: CARAVAN_SITE, or that of the
    scheduler's profile if there is such a profile. `launch` reads CARAVAN_CONTAINER itself.
    """
    python = shlex.quote(str(Path(sys.executable).parent))
    root = shlex.quote(str(home))
    # modules of some sites fail under `set -u`
    site = 'set +u; . "${CARAVAN_SITE:-$CARAVAN/profiles/$caravan_profile/environment.sh}"; set -u'
    profile = "".join(f"[[ -z ${{{name}-}} ]] || caravan_profile={folder}; " for name, folder in PROFILES.items())
    prefix = (
        f"export CARAVAN={root}; caravan_profile=; {profile}"
        "[[ -z $caravan_profile || -z ${CARAVAN_SITE-} && ! -d $CARAVAN/profiles/$caravan_profile ]] || "
        f"{{ {site}; }}; "
        f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PATH={python}:$PATH; "
        '[[ -z ${CARAVAN_CONTAINER-} ]] || python() { $CARAVAN_CONTAINER python "$@"; }; '
    )
    return prefix.replace("{", "{{").replace("}", "}}")  # Snakemake formats the prefix together with the command
