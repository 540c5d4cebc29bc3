"""push: an export gets to a Hub on loopback byte by byte; whatever is not whole is not uploaded."""

import json

import pytest

from stages import describe
from stages.lib import manifest
from tests.helpers import card_fixtures, hub_server
from tests.helpers.card_fixtures import words
from tools import push

REPO = "team/tiny-llama"
UPLOADED = {
    *("config.json", "model.safetensors", "tokenizer.json"),
    *("manifest.json", "card.json", "parity.json", "README.md"),
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """A hub, its token in the environment."""
    from huggingface_hub import constants  # not above: what it reads when it is imported holds for all tests

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # the protocol of the real Hub's storage
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    monkeypatch.setenv("HF_TOKEN", hub_server.Hub.token)
    with hub_server.running() as running:
        monkeypatch.setattr(constants, "ENDPOINT", running.address)
        yield running


@pytest.fixture
def export(tmp_path):
    """Directory of an export with its card."""
    options = card_fixtures.write_inputs(tmp_path / "results")
    assert describe.main(words(options)) == 0
    return options["--export"][0].parent


def refused(capsys, *arguments):
    """The sentence with which push ends."""
    assert push.main([str(word) for word in arguments]) == 2
    printed = capsys.readouterr()
    assert hub_server.Hub.token not in printed.out + printed.err and "hf_wrong" not in printed.out + printed.err
    assert "Traceback" not in printed.err
    return printed.err.splitlines()[-1]


def test_an_upload_is_the_files_of_the_directory_in_one_commit(hub, export, capsys):
    (export / ".manifest.json").write_text("a copy that stages.convert keeps")
    (export / "notes.txt").write_text("mine")
    assert push.main([str(export), REPO, "--private"]) == 0
    there = hub.repositories[REPO]
    uploaded = there.at("main")
    assert set(uploaded) == UPLOADED | {".gitattributes"}
    for name in ("manifest.json", "card.json"):  # without the place, and still whole
        ours, theirs = manifest.read(export / name), manifest.parse(name, json.loads(uploaded[name]))
        assert theirs.digest == ours.digest and theirs.record.keys() == ours.record.keys() - {"host", "environment"}
    for name in UPLOADED - {"parity.json", "manifest.json", "card.json"}:
        assert uploaded[name] == (export / name).read_bytes()
    parity = json.loads((export / "parity.json").read_text())
    assert parity["greedy"].pop("text")  # it begins with text of the corpus
    assert json.loads(uploaded["parity.json"]) == parity
    assert there.private and len(hub.messages) == 1
    assert manifest.read(export / "manifest.json").digest in hub.messages[0]["description"]
    printed = capsys.readouterr()
    assert f"uploaded: {hub.address}/{REPO}/commit/" in printed.out
    assert hub.token not in printed.out + printed.err


def test_a_private_upload_into_a_public_repository_is_refused(hub, export, capsys):
    hub.repositories[REPO] = hub_server.Repository()
    hub.repositories[REPO].commit({"README.md": b"theirs"})
    sentence = refused(capsys, export, REPO, "--private")
    assert f"{REPO} exists and is public: make it private on the Hub first" in sentence
    assert not hub.messages


def test_a_second_upload_replaces_the_first_and_keeps_other_files(hub, export):
    there = hub.repositories[REPO] = hub_server.Repository()
    old = {"model-00001-of-00002.safetensors": b"old", "model.safetensors.index.json": b"{}", "README.md": b"old"}
    old["adapter/adapter_config.json"] = b"{}"
    there.commit({**old, "figure.png": b"theirs", "more/model.safetensors": b"theirs"})
    assert push.main([str(export), REPO]) == 0
    assert set(there.at("main")) == UPLOADED | {"figure.png", "more/model.safetensors"}
    assert there.at("main")["README.md"] == (export / "README.md").read_bytes()
    sent = [path for method, path in hub.asked if method == "PUT"]
    assert push.main([str(export), REPO]) == 0
    assert [path for method, path in hub.asked if method == "PUT"] == sent, "the Hub has the large files already"


def test_a_dry_run_only_checks_and_a_revision_is_a_branch_that_is_made(hub, export, capsys):
    assert push.main([str(export), REPO, "--dry-run"]) == 0
    assert f"7 files are whole; nothing was uploaded to {REPO}" in capsys.readouterr().out
    assert hub.asked == []
    assert push.main([str(export), REPO, "--revision", "step-3"]) == 0
    there = hub.repositories[REPO]
    assert set(there.at("step-3")) >= UPLOADED and set(there.at("main")) == {".gitattributes"}


def test_a_hub_that_refuses_or_cannot_be_reached_is_named(hub, export, capsys, monkeypatch):
    from huggingface_hub import constants

    assert refused(capsys, export, "a/b/c") == "push: REPO must be a name as `me/my-llama`, got a/b/c"
    hub.read_only.add(REPO)
    sentence = f"push: {REPO} cannot be written with this token: it must have write access to team"
    assert refused(capsys, export, REPO) == sentence
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    sentence = f"push: {REPO} cannot be written: {hub.address} refuses the token, or does not know the repository"
    assert refused(capsys, export, REPO) == sentence
    monkeypatch.delenv("HF_TOKEN")
    sentence = f"push: {REPO} can be written only with a token, and none is set: use `hf auth login`, or set HF_TOKEN"
    assert refused(capsys, export, REPO) == sentence
    monkeypatch.setenv("HF_TOKEN", hub.token)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    assert refused(capsys, export, REPO).startswith("push: http://127.0.0.1:9 cannot be reached: ")


def test_an_export_that_is_not_whole_is_not_uploaded(hub, export, capsys):
    card = manifest.read(export / "card.json")
    forged = manifest.content(card.stage, card.identity | {"export": "0" * 64}, card.record)
    weights = (export / "model.safetensors").read_bytes()
    for name, content, sentence in (
        ("manifest.json", None, "has no manifest.json: it must be the directory of an ex"),
        ("config.json", None, "config.json is missing, but "),
        ("README.md", None, "README.md is missing, and an export is uploaded with its "),
        ("model.safetensors", weights[:-1] + b"x", "model.safetensors changed since "),
        ("parity.json", b'{"passed": false}', "parity.json must say that the parity check passed, and it does not; "),
        ("card.json", json.dumps(forged).encode(), "card.json is the card of another export than "),
    ):
        whole = (export / name).read_bytes()
        (export / name).unlink()
        if content is not None:
            (export / name).write_bytes(content)
        assert sentence in refused(capsys, export, REPO)
        (export / name).write_bytes(whole)
    assert hub.asked == []


def test_a_card_that_was_edited_is_uploaded_with_a_warning(hub, export, capsys):
    with open(export / "README.md", "a") as file:
        file.write("Our own words.\n")
    assert push.main([str(export), REPO]) == 0
    assert "README.md was edited since stages.describe wrote it" in capsys.readouterr().err
    assert hub.repositories[REPO].at("main")["README.md"].endswith(b"Our own words.\n")
