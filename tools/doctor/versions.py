"""Check that installed packages match requirements.txt, and that packages and code are the same on all hosts."""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import operator
import platform
import re
import sys
from pathlib import Path
from typing import Any

from tools.doctor.rendezvous import Rendezvous
from tools.doctor.result import FAIL, OK, WARNING, Reports, Result, differences, host_names

NAME, TIMEOUT_SECONDS = "versions", 30.0
PACKAGES = ("torch", "snakemake", "pyarrow", "sentencepiece", "transformers", "lm-eval")
MIN_PYTHON = (3, 11)
HOME = Path(__file__).resolve().parents[2]


def collect(_: Rendezvous, __: argparse.Namespace) -> dict[str, Any]:
    """Return the versions of Python and the packages (None if missing), and a digest of the code."""
    return {
        "python": platform.python_version(),
        "new enough": sys.version_info >= MIN_PYTHON,
        "packages": {name: _version(name) for name in PACKAGES},
        "code": code_digest(HOME / "stages"),
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def code_digest(directory: Path) -> str:
    """Return the sha256 of the names and bytes of all Python files of a directory, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(directory)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def pins(path: Path) -> dict[str, str]:
    """Return {package: version} of a requirements file; {} if it does not exist."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;#]+)", text, re.M))


def evaluate(reports: Reports, _: argparse.Namespace) -> list[Result]:
    """Return one result on versions and one on the code."""
    return [_evaluate_versions(reports), _evaluate_code(reports)]


def _evaluate_versions(reports: Reports) -> Result:
    first = next(iter(reports.values()))
    for report in reports.values():
        if not report["new enough"]:
            required = ".".join(map(str, MIN_PYTHON))
            text = f"Python must be {required} or later, found {report['python']} on {report['host']}"
            return Result(FAIL, NAME, text)
        if missing := [name for name, version in report["packages"].items() if version is None]:
            text = f"{', '.join(missing)} not installed on {report['host']}: pip install -r requirements.txt"
            return Result(FAIL, NAME, text)
    versions = {rank: report["packages"] | report for rank, report in reports.items()}
    differing = [
        f"{name} {by_host}"
        for name in ("python", *PACKAGES)
        if (by_host := differences(versions, operator.itemgetter(name)))
    ]
    if differing:
        return Result(FAIL, NAME, f"ranks differ: {'; '.join(differing)}: use the same environment on all hosts")
    pinned = pins(HOME / "requirements.txt")
    other = [
        f"{name} {version} instead of {pinned[name]}"
        for name, version in first["packages"].items()
        # +cpu and +cu128 are builds of one version
        if name in pinned and version.partition("+")[0] != pinned[name]
    ]
    if other:
        return Result(WARNING, NAME, f"not as pinned: {', '.join(other)}: pip install -r requirements.txt")
    packages = ", ".join(f"{name} {version}" for name, version in first["packages"].items())
    return Result(OK, NAME, f"Python {first['python']}, {packages}")


def _evaluate_code(reports: Reports) -> Result:
    digests = {report["code"] for report in reports.values()}
    if len(digests) > 1:
        first = next(iter(reports.values()))["code"]
        other = host_names(reports, lambda report: report["code"] != first)
        return Result(FAIL, "code", f"stages/ on {other} differs from the first rank's: use the same checkout")
    return Result(OK, "code", f"stages/ {digests.pop()[:12]}" + (" on all ranks" if len(reports) > 1 else ""))
