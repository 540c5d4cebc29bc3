"""The commands that each job's shell runs first."""

import shlex
import sys
from pathlib import Path


def shell_prefix(home: Path) -> str:
    """Return the prefix for the checkout `home`, for Snakemake's `shell.prefix`.

    Jobs find this checkout's stages and this Python, whatever the working directory holds and whether or not a virtual
    environment is active; PYTHONSAFEPATH keeps a folder `stages` in the working directory out. In a job of a scheduler
    the site's environment file comes first (site.sh), so that its modules do not hide this Python. `launch` reads
    CARAVAN_CONTAINER itself.
    """
    python = shlex.quote(str(Path(sys.executable).parent))
    root = shlex.quote(str(home))
    prefix = (
        f'export CARAVAN={root}; . "$CARAVAN/workflow/site.sh"; '
        f"export PYTHONPATH={root}${{PYTHONPATH:+:$PYTHONPATH}} PYTHONSAFEPATH=1 PATH={python}:$PATH; "
        '[[ -z ${CARAVAN_CONTAINER-} ]] || python() { $CARAVAN_CONTAINER python "$@"; }; '
    )
    return prefix.replace("{", "{{").replace("}", "}}")  # Snakemake formats the prefix together with the command
