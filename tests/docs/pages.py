"""The pages of the documentation, and the commands and links in them."""

import re
from pathlib import Path

HOME = Path(__file__).resolve().parents[2]
README = HOME / "README.md"
PAGES = [README, HOME / "profiles/README.md", HOME / "CHANGELOG.md", *sorted((HOME / "docs").rglob("*.md"))]
ALSO_LINKING = ("CONTRIBUTING.md", "CODE_OF_CONDUCT.md", "benchmarks/README.md", "config/README.md")
LINKING = [*PAGES, *(HOME / name for name in ALSO_LINKING if (HOME / name).exists())]


def text_of(page):
    return page.read_text(encoding="utf-8")


def name_of(page):
    return str(page.relative_to(HOME))


def commands():
    """The commands of all bash blocks, and the inline ones of snakemake and make, each once.

    Those of the tutorials are run as a whole, by `tutorials.follow`.
    """
    found = set()
    for text in [text_of(page) for page in PAGES if page.parent.name != "tutorials"]:
        blocks = re.findall(r"^ *```bash\n(.*?)```", text, re.DOTALL | re.MULTILINE)
        lines = [line for block in blocks for line in block.splitlines()]
        inline = re.findall(
            r"`(snakemake (?:-n|--profile profiles/)[^`]*|make [a-z-]+|python -m [^`A-Z]+--help)`", text
        )
        found |= {line.split("  #")[0].strip() for line in lines + inline}
    return sorted(found - {""})


def shown_commands(page):
    """All commands in a page's code, also those that need a cluster or a file: lists of words, one per command."""
    text = text_of(page)
    blocks = re.findall(r"^ *```(?:bash|sh)\n(.*?)```", text, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += re.findall(r"`((?:snakemake|python) [^`\n]+)`", text)
    return [line.split("  #")[0].split() for line in lines if re.search(r"\b(snakemake|python) -", line)]


def without_code(text):
    """A page's text without fenced blocks and inline code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE))


def links(page):
    """The targets of a page's relative links and pictures."""
    return re.findall(r"\]\((?![a-z]+:)([^)\s]+)\)", without_code(text_of(page)))


def anchors(page):
    """The anchors of a page's headings, as GitHub and mkdocs make them of plain words."""
    text = re.sub(r"^ *```.*?^ *```", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def files_named(page):
    """The paths of this repository that a page names in inline code."""
    names = r"`((?:stages|tools|workflow|config|profiles|tests|benchmarks|docs)/[\w./-]+)`"
    return re.findall(names, text_of(page))
