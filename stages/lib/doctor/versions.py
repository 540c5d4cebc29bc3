"""Whether what is installed is what requirements.txt pins, and the same on all hosts; and so is this checkout."""

import hashlib
import importlib.metadata
import platform
import re
import sys
from pathlib import Path

import stages
from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding, hosts, told_apart

NAME, SECONDS = "versions", 30.0
PACKAGES = ("torch", "snakemake", "pyarrow", "sentencepiece", "transformers", "lm-eval")
OLDEST_PYTHON = (3, 11)
HOME = Path(stages.__file__).resolve().parents[1]


def look(_, __):
    """Versions of Python and the packages, None where one is missing, and a digest of the code."""
    return {
        "python": platform.python_version(),
        "new enough": sys.version_info >= OLDEST_PYTHON,
        "packages": {name: _version(name) for name in PACKAGES},
        "code": code_digest(HOME / "stages"),
    }


def _version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def code_digest(directory):
    """The sha256 of all Python files of a directory, names and bytes, in hexadecimal."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(directory)} {len(content)}\n".encode() + content)
    return digest.hexdigest()


def pins(path):
    """{package: version} of a requirements file; {} where there is none."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    return dict(re.findall(r"^([a-z0-9-]+)==([^\s;#]+)", text, re.M))


def judge(facts, _):
    """Findings on versions and on the code."""
    return [Finding(*_on_versions(facts)), _on_code(facts)]


def _on_versions(facts):
    first = next(iter(facts.values()))
    for found in facts.values():
        if not found["new enough"]:
            wanted = ".".join(map(str, OLDEST_PYTHON))
            return FAIL, NAME, f"Python must be {wanted} or later, found {found['python']} on {found['host']}"
        if gone := [name for name, version in found["packages"].items() if version is None]:
            who = found["host"]
            return FAIL, NAME, f"{', '.join(gone)} not installed on {who}: pip install -r requirements.txt"
    differing = [
        f"{name} {text}"
        for name in ("python", *PACKAGES)
        if (text := told_apart(facts, lambda found, n=name: found["python"] if n == "python" else found["packages"][n]))
    ]
    if differing:
        return FAIL, NAME, f"ranks differ: {'; '.join(differing)}: give all hosts the same environment"
    pinned = pins(HOME / "requirements.txt")
    other = [
        f"{name} {version} for {pinned[name]}"
        for name, version in first["packages"].items()
        # +cpu and +cu128 are builds of one version
        if name in pinned and version.partition("+")[0] != pinned[name]
    ]
    if other:
        return WARNING, NAME, f"not what was tested: {', '.join(other)}: pip install -r requirements.txt"
    found = ", ".join(f"{name} {version}" for name, version in first["packages"].items())
    return OK, NAME, f"Python {first['python']}, {found}"


def _on_code(facts):
    digests = {found["code"] for found in facts.values()}
    if len(digests) > 1:
        first = next(iter(facts.values()))["code"]
        other = hosts(facts, lambda found: found["code"] != first)
        return Finding(FAIL, "code", f"stages/ is not the same on all hosts: another than the first rank's on {other}")
    return Finding(OK, "code", f"stages/ {digests.pop()[:12]}" + (" on all ranks" if len(facts) > 1 else ""))
