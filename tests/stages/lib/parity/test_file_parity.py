"""The parity check of an export's files: each key of its JSON files."""

import copy
import json
import shutil

import pytest

from stages.lib import files, manifest
from stages.lib.huggingface import tokenizer_files
from stages.lib.parity import file_parity
from stages.lib.parity.parity import ParityError

SPECIAL = {"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": False}}


@pytest.fixture
def made(tokenizer, tmp_path):
    """A tokenizer with a special_tokens_map.json beside it."""
    directory = shutil.copytree(tokenizer.parent, tmp_path / "tokenizer")
    files.write_json(directory / "special_tokens_map.json", SPECIAL)
    found = manifest.read(directory / "manifest.json")
    outputs = found.identity["outputs"]
    outputs |= {"special_tokens_map.json": manifest.describe(directory / "special_tokens_map.json")}
    manifest.write(found.path, found.stage, found.identity | {"outputs": outputs}, found.record)
    return manifest.read(found.path)


def places(value, path=()):
    """The path of each key and entry in a JSON value; of long lists and mappings the first, last and a middle one."""
    if isinstance(value, dict | list) and value:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        for key in keys if len(keys) < 30 else (keys[0], keys[len(keys) // 2], keys[-1]):
            yield from places(value[key], (*path, key))
    if path:
        yield path


def at(value, path):
    for key in path:
        value = value[key]
    return value


@pytest.mark.parametrize("change", ["another value", "removed", "added"])
@pytest.mark.parametrize("name", ["tokenizer.json", "special_tokens_map.json"])
def test_each_changed_key_is_named(made, tmp_path, name, change):
    tokenizer_files.copy(tmp_path, made, True)
    expected = tokenizer_files.contents(made, True)
    model = expected["tokenizer.json"]["model"]  # a few of its pieces: the file is written for each place
    model |= {"vocab": dict(list(model["vocab"].items())[:40]), "merges": model["merges"][:40]}
    files.write_json(tmp_path / "tokenizer.json", expected["tokenizer.json"])
    every = list(places(expected[name]))
    assert len(every) > (40 if name == "tokenizer.json" else 3)
    for path in every:
        changed = copy.deepcopy(expected[name])
        inside, where = at(changed, path[:-1]), ".".join(map(str, path))
        if change == "another value":
            inside[path[-1]] = "\u2603" if inside[path[-1]] != "\u2603" else None
        elif change == "removed":
            del inside[path[-1]]
        elif isinstance(inside, dict):
            inside["zzz"] = 1
            where = ".".join(map(str, (*path[:-1], "zzz")))
        if isinstance(inside, list) and change != "another value":
            where = ".".join(map(str, path[:-1]))
        if changed == expected[name]:
            continue
        files.write_json(tmp_path / name, changed)
        with pytest.raises(ParityError) as caught:
            file_parity.compare_contents(tmp_path, expected)
        assert str(caught.value).startswith(f"{name}: {where} must "), path


def test_copies_of_a_tokenizer_are_equal_to_it_until_its_sentencepiece_model_changes(made, tmp_path):
    for bos_added in (False, True):
        expected = tokenizer_files.contents(made, bos_added)
        tokenizer_files.copy(tmp_path, made, bos_added)
        file_parity.compare_contents(tmp_path, expected)
        assert (json.loads((tmp_path / "tokenizer.json").read_text())["post_processor"] is None) != bos_added
    (tmp_path / "tokenizer.model").write_bytes(b"another")
    with pytest.raises(ParityError, match=r"tokenizer\.model differs from the tokenizer's"):
        file_parity.compare_contents(tmp_path, expected)
    files.write_json(tmp_path / "a.json", {"use_cache": 1})
    with pytest.raises(ParityError, match="a.json: use_cache must be True, found 1"):
        file_parity.compare_contents(tmp_path, {"a.json": {"use_cache": True}})
