"""Manifests: digests through identity alone, and payloads that are what they say."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.lib import manifest
from stages.lib.errors import UserError


@pytest.fixture
def path(tmp_path):
    """A manifest with one payload file."""
    (tmp_path / "payload").write_bytes(b"12345")
    identity = {"outputs": {"payload": manifest.describe(tmp_path / "payload")}, "recipe": {"a": 1e-3}}
    manifest.write(tmp_path / "m.json", "index", identity, {"seconds": 1.0})
    return tmp_path / "m.json"


def test_the_record_and_the_order_of_keys_change_no_digest(path):
    read = manifest.read(path)
    manifest.write(path, "index", dict(reversed(read.identity.items())), {"seconds": 2.0})
    again = manifest.read(path)
    assert again.record != read.record
    assert again.digest == read.digest == manifest.digest_of(read.identity)


def test_the_digest_of_an_identity_never_changes():
    digest = manifest.digest_of({"b": [1, 2.5, None, True], "a": "\u00e9"})
    expected = "0c187fb652afca8017b5ef38178eeef09a9dfef844316f80ba4207cdf1995ee5"
    assert digest == expected, "all results would have to be made again"


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "payload is missing, but .*m.json lists it"), (b"1", "payload has 1 bytes, but .*m.json lists 5")],
)
def test_an_output_that_vanished_or_changed_its_size_is_named_with_what_to_do(path, content, said):
    (path.parent / "payload").unlink()
    if content is not None:
        (path.parent / "payload").write_bytes(content)
    with pytest.raises(UserError, match=f"{said}.*delete .*m.json and run the workflow again"):
        manifest.read(path).output("payload")


def test_an_output_is_one_that_the_manifest_lists_with_the_bytes_that_it_had(path):
    read = manifest.read(path)
    assert read.output("payload") == path.parent / "payload"
    manifest.check_content(path.parent / "payload", read.identity["outputs"]["payload"], path)
    with pytest.raises(UserError, match=r"m\.json does not list the output other"):
        read.output("other")
    (path.parent / "payload").write_bytes(b"12346")
    with pytest.raises(UserError, match="payload changed since .*m.json was written: its sha256 differs"):
        manifest.check_content(path.parent / "payload", read.identity["outputs"]["payload"], path)


@pytest.mark.parametrize(
    "content",
    ["[]", "{}", '{"identity": {}}', '{"identity": {}, "record": {}, "more": 1}', "null", '{"format": 2}']
    + [json.dumps({"format": 2, "identity": {}, "record": {}, **more}) for more in ({}, {"sha256": ""}, {"stage": "a"})]
    + [json.dumps({"format": 2, "stage": "a", "sha256": "", "record": {}, "identity": other}) for other in ([], None)],
)
def test_what_is_no_manifest_is_refused(path, content):
    path.write_text(content)
    expected = r"m\.json must be a manifest with the keys format, stage, identity, record and sha256"
    with pytest.raises(UserError, match=expected):
        manifest.read(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_flipped_bit_is_refused_or_changes_nothing(path, data):
    content = path.read_bytes()
    before = manifest.read(path)
    at = data.draw(st.integers(0, len(content) - 1))
    changed = bytearray(content)
    changed[at] ^= 1 << data.draw(st.integers(0, 7))
    path.write_bytes(changed)
    try:
        assert manifest.read(path) == before  # white space
    except UserError as error:
        assert str(error).startswith(str(path))
    finally:
        path.write_bytes(content)


@pytest.mark.parametrize("part", ["identity", "record"])
def test_an_edited_manifest_is_refused_with_what_to_do(path, part):
    data = json.loads(path.read_text())
    data[part]["tokens"] = 3
    path.write_text(json.dumps(data))
    with pytest.raises(UserError, match=r"m\.json changed since it was written: .* delete it and run the workflow"):
        manifest.read(path)


def test_the_manifest_of_another_stage_is_refused(path):
    assert manifest.read(path, "index").stage == manifest.read(path, "tokenize", "index").stage == "index"
    expected = r"m\.json is the manifest of stages\.index, expected one of stages\.pretrain or stages\.finetune"
    with pytest.raises(UserError, match=expected):
        manifest.read(path, *manifest.TRAINING)


@pytest.mark.parametrize(("given", "found"), [({}, 1), ({"format": 1}, 1), ({"format": 3}, 3)])
def test_a_manifest_of_another_format_is_refused_with_what_to_do(path, given, found):
    path.write_text(json.dumps(given | {"identity": {}, "record": {}}))
    with pytest.raises(UserError, match=rf"is a manifest of format {found}, .* move the results directory away"):
        manifest.read(path)


def test_a_record_tells_no_secrets(monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "secret")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    record = manifest.Clock("abc").record()
    assert record["environment"]["OMP_NUM_THREADS"] == "2"
    assert "secret" not in str(record)
    assert record["code"] == "abc"
    assert record["versions"]["numpy"]
