"""Run a stage several times in this rank's process; after its name, a JSON file of [port, options] each."""

import importlib
import json
import os
import sys
from pathlib import Path

from stages.lib import stage


def main(name, path):
    """Stop at the first run that fails."""
    module = importlib.import_module(f"stages.{name}")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # torchrun's own holds the keys of the run before
    for port, options in json.loads(Path(path).read_text()):
        os.environ["MASTER_PORT"] = str(port)
        code = module.main(options)
        if code:
            return code
    return 0


if __name__ == "__main__":
    stage.leave(main(*sys.argv[1:]))
