"""Manifests: the small JSON file that a stage writes last, and by which the next stage knows what it is given.

    {"identity": {...}, "record": {...}}

identity holds all that the result depends on: the recipe's identity fields, the digests of the inputs' identities and
the sha256 of the outputs. record holds what may differ between two makings of the same thing: times, versions, host.
Digests chain through identity alone.
"""

import importlib.metadata
import json
import os
import platform
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from stages.lib import files
from stages.lib.errors import UserError

PACKAGES = (
    *("torch", "numpy", "pyarrow", "sentencepiece", "tokenizers", "gigatoken"),
    *("transformers", "lm_eval", "snakemake"),
)
ENVIRONMENT = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "WORLD_SIZE")


@dataclass(frozen=True)
class Manifest:
    """A manifest that was read: its path, identity and record."""

    path: Path
    identity: dict
    record: dict

    @property
    def digest(self):
        """The sha256 of the identity, by which other manifests refer to this one."""
        return digest_of(self.identity)

    @property
    def directory(self):
        """The directory against which the manifest's relative paths are read."""
        return self.path.parent

    def output(self, name):
        """The path of one output by its relative name.

        Raises UserError when the manifest has no such output, or the file vanished or changed its size.
        """
        outputs = self.identity["outputs"]
        if name not in outputs:
            raise UserError(f"{self.path} lists no output {name}")
        check_size(self.directory / name, outputs[name]["bytes"], self.path)
        return self.directory / name


def digest_of(identity):
    """The sha256 of plain data in canonical JSON, in hexadecimal."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return files.sha256_bytes(text.encode())


def check_size(path, size, manifest_path):
    """Raise UserError when a payload file vanished, or has another size than its manifest says."""
    try:
        found = path.stat().st_size
    except OSError:
        raise UserError(
            f"{path} is gone, but {manifest_path} lists it; delete {manifest_path} and run the workflow again"
        ) from None
    check_found_size(path, found, size, manifest_path)


def check_found_size(path, found, size, manifest_path):
    """Raise UserError when a payload file, which was looked at, has another size than its manifest says."""
    if found != size:
        raise UserError(
            f"{path} must have {size} bytes by {manifest_path}, and has {found}; "
            f"delete {manifest_path} and run the workflow again"
        )


def check_content(path, described, manifest_path):
    """Raise UserError when a payload file vanished, or is not what its manifest says of it: `{"bytes", "sha256"}`."""
    check_size(path, described["bytes"], manifest_path)
    if files.sha256_file(path) != described["sha256"]:
        raise UserError(
            f"{path} changed since {manifest_path} was written: its sha256 differs; "
            f"delete {manifest_path} and run the workflow again"
        )


def describe(path, first=0, end=None):
    """What a manifest says of a file, or of its bytes [first, end): `{"bytes": N, "sha256": HEX}`."""
    count, sha256 = files.sha256_range(path, first, end)
    return {"bytes": count, "sha256": sha256}


def read(path):
    """Read a manifest. Raises UserError when it is missing, or is no manifest."""
    data = files.read_json(path)
    if not isinstance(data, dict) or set(data) != {"identity", "record"}:
        raise UserError(f"{path} must be a manifest with the keys identity and record")
    return Manifest(Path(path), data["identity"], data["record"])


def write(path, identity, record):
    """Write a manifest atomically. Its directory must be the one that relative paths in it start from."""
    files.write_json(path, {"identity": identity, "record": record})


class Clock:
    """Measures a stage from its start, and makes the record of its manifest."""

    def __init__(self, code=None):
        self.code = code
        self.started = time.time()
        self.cpu = time.process_time()

    def record(self, **more):
        """The record of a manifest: seconds, versions, host, an allow-list of the environment, and `more`."""
        return {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 3),
            "cpu_seconds": round(time.process_time() - self.cpu, 3),
            "commit": _commit(),
            "code": self.code,
            "host": platform.node(),
            "python": platform.python_version(),
            "versions": _versions(),
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            **more,
        }


def _versions():
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit():
    """The git commit of the code, with `+` where the tree was changed; None outside a checkout."""
    home = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(home), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
