"""Print the release notes of a tag: the section of its version in CHANGELOG.md.

    python .ci/release_notes.py v0.1.0

The exit code is 2, with one sentence, if tag, pyproject.toml, CITATION.cff and CHANGELOG.md do not agree.
"""

import re
import sys
import tomllib
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]


def notes_of(tag: str, home: Path) -> str:
    """Return the notes of a tag. Raises ValueError with a sentence if a file has another version or date."""
    version = tomllib.loads((home / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    if tag != f"v{version}":
        raise ValueError(f"the tag must be v{version}, the version of pyproject.toml, got {tag}")
    changes = (home / "CHANGELOG.md").read_text(encoding="utf-8")
    section = re.search(rf"^## \[{re.escape(version)}\] - (\d{{4}}-\d\d-\d\d)\n(.*?)(?=^## |\Z)", changes, re.M | re.S)
    if section is None or not section[2].strip():
        raise ValueError(f"CHANGELOG.md must have a section '## [{version}] - YYYY-MM-DD' with text, and has none")
    citation = (home / "CITATION.cff").read_text(encoding="utf-8")
    for line in (f"version: {version}", f"date-released: {section[1]}"):
        if line not in citation.splitlines():
            raise ValueError(f"CITATION.cff must have the line '{line}', as pyproject.toml and CHANGELOG.md have it")
    return section[2].strip()


def main(words: list[str]) -> int:
    """Run the command line."""
    try:
        if len(words) != 1:
            raise ValueError("one tag must be given, for example v0.1.0")
        print(notes_of(words[0], HOME))
    except ValueError as error:
        print(f"release_notes: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
