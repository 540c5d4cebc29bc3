"""A config of an earlier version gets one sentence: the key, its new name, and the page that lists them all."""

import pytest

from scripts.config import other_names
from scripts.config_check import ConfigError, checked, load_schema
from tests.workflow.checkout import HOME

SCHEMA = load_schema(HOME / "workflow/schemas/config.schema.yaml")


def schema_of(path):
    """The schema at a path of other_names; None if the schema has no such key."""
    schema = SCHEMA
    for part in path.split("."):
        schema = next((choice for choice in schema.get("anyOf", [schema]) if choice.get("type") == "object"), {})
        schema = schema.get("additionalProperties") if part == "*" else schema.get("properties", {}).get(part)
        if schema is None:
            return None
    return schema


def nested(path, value):
    """A config that holds nothing but one key."""
    for part in reversed(path.replace("*", "mine").split(".")):
        value = {part: value}
    return value


def sentence(config):
    with pytest.raises(ConfigError) as found:
        checked(config, SCHEMA)
    return str(found.value)


@pytest.mark.parametrize(("old", "new"), other_names.KEYS.items())
def test_an_old_key_is_answered_by_its_new_name(old, new):
    group = old.rpartition(".")[0]
    assert schema_of(old) is None and schema_of(f"{group}.{new}") is not None
    shown, parent = old.replace("*", "mine"), group.replace("*", "mine")
    assert sentence(nested(old, 1)) == f"{shown} is now {parent}.{new}; see docs/renamed_keys.md"


@pytest.mark.parametrize(("path", "old", "new"), [(*key, new) for key, new in other_names.VALUES.items()])
def test_an_old_value_is_answered_by_its_new_one(path, old, new):
    choices = schema_of(path)["enum"]
    assert old not in choices and new.split()[0] in choices
    shown = path.replace("*", "mine")
    assert sentence(nested(path, old)) == f"{shown}: the value {old} is now {new}; see docs/renamed_keys.md"


def test_the_keys_of_finetune_are_those_of_pretrain():
    config = {"runs": {"mine": {"finetune": {"global_batch": 1}}}}
    assert sentence(config).startswith("runs.mine.finetune.global_batch is now runs.mine.finetune.global_batch_size;")


def test_the_page_lists_every_renamed_key_and_value():
    page = (HOME / other_names.PAGE).read_text(encoding="utf-8")
    for old, new in other_names.KEYS.items():
        group, _, last = old.rpartition(".")
        assert f"`{last}`" in page or f"{last}`" in page, old
        assert f"{new}`" in page, (group, new)
    for (_, old), new in other_names.VALUES.items():
        assert old in page and new.split()[0] in page
