"""Links, anchors and names of files in the documentation exist, and its tables agree with the schema."""

import itertools
import re

import pytest
import yaml

from tests.docs.pages import HOME, LINKING, PAGES, README, anchors, files_named, links, name_of, shown_commands, text_of

ON_GITHUB = "../../actions/"  # below the repository's page, the badge of CI


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_links_and_anchors_exist(page):
    for link in links(page):
        path, _, anchor = link.partition("#")
        if path.startswith(ON_GITHUB):
            continue
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if page.parent == HOME / "docs":  # a link out of them is broken on the site
            assert target.is_relative_to(HOME / "docs"), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_named_in_code_exist(page):
    for path in files_named(page):
        if "NAME" not in path and "__pycache__" not in path:  # which a fresh checkout lacks
            assert (HOME / path).exists(), path


def pages_of(nav):
    """The pages of a nav of mkdocs, at any depth."""
    for entry in nav:
        for value in entry.values():
            yield from pages_of(value) if isinstance(value, list) else [value]


@pytest.mark.parametrize("page", LINKING, ids=name_of)
def test_modules_options_and_profiles_of_commands_exist(page):
    for words in shown_commands(page):
        for flag, value in itertools.pairwise(words):
            if flag == "--profile" and value.startswith("profiles/"):
                assert (HOME / value / "profile.yaml").exists(), words
            if flag == "-m" and value.startswith(("stages.", "tools.", "benchmarks.")) and "NAME" not in value:
                assert options_of(words) - options_known_to(value) == set(), words


def options_of(words):
    """The options of a command, without their values."""
    return {word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)} - {"--help"}


def options_known_to(module):
    """The options that the text of a module of this repository, or of the library below it, has."""
    paths = [HOME / f"{module.replace('.', '/')}{ending}" for ending in (".py", "/__main__.py")]
    texts = [text_of(path) for path in paths if path.exists()]
    assert texts, module
    return set(re.findall(r'"(--[a-z-]+)"', "".join([*texts, *map(text_of, (HOME / "stages/lib").rglob("*.py"))])))


def test_the_site_has_every_page_and_the_readme_leads_to_each():
    text = re.sub(r"!!python/name:\S+", "''", text_of(HOME / "mkdocs.yml"))
    docs = {str(page.relative_to(HOME / "docs")) for page in (HOME / "docs").rglob("*.md")}
    shown = list(pages_of(yaml.safe_load(text)["nav"]))
    assert len(shown) == len(docs)
    assert set(shown) == docs
    assert {f"docs/{page}" for page in docs - {"index.md"}} <= {link.partition("#")[0] for link in links(README)}
    assert (HOME / "docs/images/report.png").stat().st_size < 200_000


def test_each_shipped_config_names_the_schema():
    for path in sorted((HOME / "config").glob("*.yaml")):
        line = text_of(path).splitlines()[0]
        schema = re.fullmatch(r"# yaml-language-server: \$schema=(\S+)", line)[1]
        assert (path.parent / schema).resolve() == HOME / "workflow/schemas/config.schema.yaml"


def code():
    """The text of all code that prints messages, adjacent string literals joined."""
    files = [path for folder in ("stages", "tools", "workflow") for path in sorted((HOME / folder).rglob("*"))]
    files = [path for path in files if path.suffix in (".py", ".smk")]
    text = "\n".join(text_of(path) for path in [*files, HOME / "workflow/launch", HOME / "workflow/Snakefile"])
    return re.sub(r"[\"']\s*\n\s*f?[\"']", "", text)


def test_messages_of_the_troubleshooting_page_are_those_of_the_code():
    chapter = text_of(HOME / "docs/troubleshooting.md").split("## Messages of ")[1]
    messages = re.findall(r"^\| `([^`]+)`", chapter, re.MULTILINE)
    assert len(messages) > 10
    text = code()
    missing = [part for message in messages for part in message.split("...") if part.strip() not in text]
    assert not missing
