"""Write pixi.toml, workflow/envs/caravan.yml and uv.lock from pyproject.toml and the pinned requirements.

python workflow/scripts/generate_environments.py [DIRECTORY] [--lock]

writes the first two, below DIRECTORY if given. With --lock, uv (`make lock`) resolves uv.lock too: uv reads no
requirements file, so they constrain a first resolution, whose versions a second one without them keeps.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
PINNED = ("requirements.txt", "requirements-dev.txt")
PUBLIC = ("https://pypi.org/simple", "https://files.pythonhosted.org/")
"""The only addresses of a lock file: those of a mirror would be of no use elsewhere."""

PIXI = """\
# `pixi run demo`: Python from conda-forge, and the packages of requirements.txt from PyPI, in .pixi.
# Written by `make lock`; edit pyproject.toml, not this file. All packages but Python are pinned here.

[workspace]
name = "caravan"
channels = ["conda-forge"]
platforms = ["linux-64"]

[dependencies]
python = "3.11.*"

[pypi-dependencies]
caravan = {{ path = ".", editable = true }} # puts the checkout on the path, for the logger plugin of the profiles
{packages}

[tasks]
demo = "snakemake --profile profiles/local all"
"""

CONDA = """\
# The environment of `snakemake --sdm conda`. Snakemake copies this file, so it cannot refer to requirements.txt.
# Written by `make lock`; edit pyproject.toml, not this file.
channels:
  - conda-forge
dependencies:
  - python=3.11
  - pip
  - pip:
{packages}
"""


def pins(name: str) -> list[str]:
    """Return the lines `package==version` of a requirements file, with their markers."""
    lines = (line.split("#")[0].strip() for line in (HOME / name).read_text(encoding="utf-8").splitlines())
    return [line for line in lines if line]


def write_files(folder: Path) -> None:
    """Write pixi.toml and workflow/envs/caravan.yml below a folder."""
    packages = [pin.split("==") for pin in pins(PINNED[0])]
    table = "\n".join(f'{name} = "=={version}"' for name, version in packages)
    (folder / "pixi.toml").write_text(PIXI.format(packages=table), encoding="utf-8")
    environment = folder / "workflow/envs/caravan.yml"
    environment.parent.mkdir(parents=True, exist_ok=True)
    listed = "\n".join(f"      - {name}=={version}" for name, version in packages)
    environment.write_text(CONDA.format(packages=listed), encoding="utf-8")


def write_lock() -> None:
    """Write uv.lock. Exits with a sentence if uv fails, or if the lock names another registry than PyPI."""
    uv = os.environ.get("UV", "uv")
    constraints = sorted({pin for name in PINNED for pin in pins(name)})
    project = (HOME / "pyproject.toml").read_text(encoding="utf-8")
    # JSON of texts is TOML too
    constrained = project.replace("[tool.uv]\n", f"[tool.uv]\nconstraint-dependencies = {json.dumps(constraints)}\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("UV_")}
    with tempfile.TemporaryDirectory() as folder:
        for name in ("README.md", "setup.py", "uv.lock"):
            if (HOME / name).exists():
                shutil.copy2(HOME / name, folder)
        for text in (constrained, project):
            Path(folder, "pyproject.toml").write_text(text, encoding="utf-8")
            command = [uv, "lock", "--quiet", "--no-config", "--default-index", PUBLIC[0]]
            if subprocess.run(command, cwd=folder, env=environment, check=False).returncode:
                sys.exit("generate_environments: uv could not resolve uv.lock")
        lock = Path(folder, "uv.lock").read_text(encoding="utf-8")
        others = {url for url in re.findall(r'"(https?://[^"]*|file:[^"]*)"', lock) if not url.startswith(PUBLIC)}
        if others:
            sys.exit(f"generate_environments: uv.lock must name no other address than PyPI's, got {min(others)}")
        (HOME / "uv.lock").write_text(lock, encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", nargs="?", type=Path, default=HOME)
    parser.add_argument("--lock", action="store_true", help="also write uv.lock")
    options = parser.parse_args(argv)
    write_files(options.directory)
    if options.lock:
        write_lock()


if __name__ == "__main__":
    main()
