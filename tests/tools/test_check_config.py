"""tools.check FILE: a person's check of a config, which starts no stage."""

import copy
import io
import sys

import pytest
import yaml

from tests.helpers.data_fixtures import write_jsonl
from tests.workflow.checkout import HOME
from tools.check import __main__ as check

DEFAULT = yaml.safe_load((HOME / "config/config.yaml").read_text(encoding="utf-8"))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A working directory with a text and a config for it."""
    monkeypatch.chdir(tmp_path)
    write_jsonl(tmp_path / "texts/a.jsonl", [{"text": f"kara {number}"} for number in range(10, 60)])
    config = copy.deepcopy(DEFAULT)
    config["sources"]["code"] = {"kind": "jsonl", "paths": ["texts/*.jsonl"], "validation": 0.2}
    config["sources"]["far"] = {"kind": "text", "paths": ["s3://bucket/x"]}
    (tmp_path / "my.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def checked(capsys, *words):
    """Return (exit code, what was printed, the last line of stderr)."""
    code = check.main(list(words))
    told = capsys.readouterr()
    assert "Traceback" not in told.err and len(told.err.splitlines()) <= 1
    return code, told.out, told.err.strip()


def test_config_is_described_and_nothing_is_made(place, capsys):
    (place / "more.yaml").write_text("results: out\nsuites: {validation: {num_examples: 9}}")
    words = ["my.yaml", "more.yaml", "runs.base.pretrain.milestones=[100, 200, 300]"]
    words += ["runs.base.pretrain.optimizer.learning_rate=2"]
    code, printed, _ = checked(capsys, *words, "--profile", "local")
    assert code == 0
    assert printed.startswith(" ".join(words) + ": no mistake found, but read the notes below, in ")
    for line in (
        "note: runs.base.pretrain.optimizer.learning_rate is 2, and usual rates are 1e-5 to 0.02: above 0.1 the loss",
        "run base: pretrain, 300 steps, 307,200 tokens, validation at most 5% more; milestones 100, 200, 300",
        "run statements: finetune, the model of run base, 100 steps, up to 204,800 tokens, validation at most 8% more; "
        "milestones 100",
        "source code: jsonl, 1 file, 1.0 kB",
        "source far: text, 1 remote path, which is not opened",
        "all would start 2 list, 1 train_tokenizer, 4 tokenize, 1 index, 3 pretrain, 3 convert, 3 evaluate",
    ):
        assert f"  {line}" in printed, printed
    assert not (place / "out").exists() and not (place / "results").exists()


MISTAKES = [
    (["my.yaml", "runs.base.pretrain.stepz=3"], "unknown key runs.base.pretrain.stepz; did you mean runs.base."),
    (["my.yaml", "sources.code.paths=[none/*.txt]"], "sources.code.paths: none/*.txt"),
    (["none.yaml"], "none.yaml cannot be read: No such file or directory"),
    (["texts"], "texts cannot be read: Is a directory"),
    (["bad.yaml"], "bad.yaml must be YAML: while parsing"),
    (["list.yaml"], "list.yaml must be a mapping of keys to values, and is not"),
    (["my.yaml", "--profile", "loca"], "--profile must be a directory with a profile.yaml, or one of "),
    ([], "stdin must hold a plan of the workflow as JSON; name a config file to check it"),
]


def test_mistake_is_one_sentence(place, capsys, monkeypatch):
    (place / "bad.yaml").write_text("a: [")
    (place / "list.yaml").write_text("[1]")
    monkeypatch.setattr(sys, "stdin", io.StringIO("x"))
    for words, sentence in MISTAKES:
        code, printed, error = checked(capsys, *words)
        assert (code, printed) == (2, "") and error.startswith(f"check: {sentence}")
