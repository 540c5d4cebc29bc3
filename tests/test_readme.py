"""Every command in README and docs is run, or dry-run if it would take long. Links: tests/docs/."""

import json
import re
import shlex
import shutil
import subprocess

import pytest

from tests.docs.pages import HOME, README, commands, text_of
from tests.helpers import ranks
from tests.workflow.checkout import Checkout, copy_project

TEXT = text_of(README)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A copy of the checkout, with the config and the texts of the README's chapter on own text."""
    directory = tmp_path_factory.mktemp("readme") / "caravan"
    directory.mkdir()
    copy_project(directory)
    for name in ("Makefile", "pyproject.toml", "requirements.txt", "requirements-dev.txt"):
        shutil.copy2(HOME / name, directory)
    (directory / "my.yaml").write_text(re.search(r"```yaml\n(.*?)```", TEXT, re.DOTALL)[1])
    (directory / "books/a").mkdir(parents=True)
    for number in range(400):  # some of them are validation text
        (directory / f"books/a/{number}.txt").write_text(f"text {number}\n")
    (directory / "web").mkdir()
    rows = [json.dumps({"text": f"text {number}", "url": f"http://example.org/{number}"}) for number in range(4000)]
    (directory / "web/one.jsonl").write_text("\n".join(rows))
    (directory / "results").mkdir()
    return directory


def test_pages_show_commands():
    assert len(commands()) > 20


@pytest.mark.parametrize("command", commands())
def test_command_works(place, command, monkeypatch):
    words = shlex.split(command)
    if words[0] == "make":
        words.insert(1, "--dry-run")
        done = subprocess.run(words, check=False, cwd=place, capture_output=True, text=True, timeout=120)
        code, printed = done.returncode, done.stdout + done.stderr
    elif words[0] == "snakemake":
        if not {"--unlock", "--rulegraph"} & set(words):
            words = [word for word in words if word != "--report-after-run"]
            if "--report" in words:  # in a dry run it would be written
                at = words.index("--report")
                words = words[:at] + words[at + 2 :]
            words.append("--dry-run")
        done = Checkout(place).snakemake(*words[1:], check=False)
        code, printed = done.returncode, done.stdout + done.stderr
    else:
        if words[2] == "tools.ablate":  # trains a large model on several GPUs
            words.append("--help")
        elif "--output" not in words and words[2].startswith("benchmarks."):
            words += ["--output", "out.json"]
        monkeypatch.chdir(place)
        code, printed = ranks.run_module(0, words[2], words[3:])
    if {"--model", "--corpus", "--chain"} & set(words):  # of a run that is not made here: the only possible complaint
        assert code == 2
        assert printed.endswith(("does not exist\n", "No such file or directory\n"))
    else:
        assert code == 0, printed


def test_picture_is_the_rule_graph(place):
    drawn = Checkout(place).snakemake("--rulegraph", "mermaid-js", "all").stdout
    names = dict(re.findall(r"(id\d+)\[(\w+)\]", drawn))
    rules = {(names[a], names[b]) for a, b in re.findall(r"(id\d+) --> (id\d+)", drawn)}
    picture = (HOME / "docs/images/rules.svg").read_text(encoding="utf-8")
    boxes = dict(re.findall(r'class="node">\n<title>(\d+)</title>.*?<text[^>]*>(\w+)<', picture, re.DOTALL))
    arrows = re.findall(r"<title>(\d+)&#45;&gt;(\d+)</title>", picture)
    assert {(boxes[a], boxes[b]) for a, b in arrows} == rules, "run `make rules-picture`"
