"""Run stages.pretrain several times in this rank's process; the argument is a JSON file of [port, options] each."""

import json
import os
import sys
from pathlib import Path

from stages import pretrain
from stages.lib import stage


def main(path):
    """Stop at the first run that fails."""
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # torchrun's own holds the keys of the run before
    for port, options in json.loads(Path(path).read_text()):
        os.environ["MASTER_PORT"] = str(port)
        code = pretrain.main(options)
        if code:
            return code
    return 0


if __name__ == "__main__":
    stage.leave(main(*sys.argv[1:]))
