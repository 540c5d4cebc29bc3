"""Follow a tutorial: run its commands, and compare what they print with what the page shows."""

import os
import re
import subprocess
import sys
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]


def clone(directory):
    """Return a fresh clone of this repository, in a path with a space."""
    path = directory / "fresh clone"
    subprocess.run(["git", "clone", "--quiet", HOME, path], check=True)
    return path


def environment(more=os.environ):
    """Return the variables of a shell in which the environment of the tests is on the PATH."""
    kept = {name: value for name, value in more.items() if not name.startswith("PYTHON")}
    return kept | {"PATH": f"{Path(sys.executable).parent}:{more['PATH']}"}


def follow(name, directory, variables, until=None):
    """Run the commands of a tutorial in a directory, in their order.

    Each line that the page shows must be among the lines of the commands before it, with other numbers perhaps.
    `until`: the heading before which to stop.
    """
    text = (HOME / f"docs/tutorials/{name}.md").read_text(encoding="utf-8")
    text = text.partition(f"\n## {until}\n")[0]
    said, exports = "", ""
    for kind, block in re.findall(r"^```(bash|text)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
        if kind == "bash":
            command = ["bash", "-e", "-o", "pipefail", "-c", exports + block]
            exports += "".join(re.findall(r"^export .*\n", block, re.MULTILINE))
            done = subprocess.run(
                command, check=False, cwd=directory, env=variables, capture_output=True, text=True, timeout=1700
            )
            said = done.stderr + done.stdout
            assert done.returncode == 0, block + said[-6000:]
        else:
            lines = {masked(line) for line in said.splitlines()}
            missing = [line for line in block.splitlines() if masked(line) not in lines]
            assert not missing, "\n".join([*missing, "not in:", said[-6000:]])


def masked(line):
    """A line whose numbers, with their spaces, are 0."""
    return re.sub(r"\s+", " ", re.sub(r"-?\d[\d,.:]*", "0", line)).strip()
