"""Reading of recipes: strict, with one sentence for each mistake."""

import json
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from stages.convert import ConvertRecipe
from stages.evaluate import EvaluateRecipe
from stages.lib import recipe, recipe_schema
from stages.lib.errors import UserError
from stages.lib.recipe import horizon, identity, operation
from stages.lib.sources.source import SourceRecipe
from stages.pretrain import PretrainRecipe
from stages.tokenize import TokenizeRecipe
from stages.train_tokenizer import TokenizerRecipe

RECIPES = (SourceRecipe, TokenizerRecipe, TokenizeRecipe, PretrainRecipe, ConvertRecipe, EvaluateRecipe)


@dataclass(frozen=True, kw_only=True)
class Inner:
    """A recipe in a recipe."""

    rate: float = identity(0.5, above=0, maximum=1)
    """A number."""

    every: int = operation(10, minimum=1)
    """A whole number."""


@dataclass(frozen=True, kw_only=True)
class Outer:
    """One field of each type."""

    name: str = identity(choices=("a", "b"))
    """A choice."""

    inner: Inner = identity(Inner())
    """A recipe."""

    flag: bool = identity(False)
    """A truth."""

    count: int | None = identity(None, minimum=1)
    """Maybe a number."""

    names: list[str] = identity([], unique=True)
    """A list."""

    tasks: list[str] = identity(["x"], entries=1, unique=True)
    """A list that is not empty."""

    turns: list[Inner] = identity([])
    """Recipes in turn."""

    weights: dict[str, float] = identity({}, minimum=0)
    """Numbers
    by name."""

    steps: int = horizon(100, minimum=1)
    """Length of the run."""


def load(**data):
    return recipe.load(Outer, {"name": "a"} | data, "runs.base")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"nam": "a"},
            "unknown key runs.base.nam; did you mean runs.base.name? known here: "
            "count, flag, inner, name, names, steps, tasks, turns, weights",
        ),
        (
            {"inner": {"ratE": 1}},
            "unknown key runs.base.inner.ratE; did you mean runs.base.inner.rate? known here: every, rate",
        ),
        ({"name": "c"}, "runs.base.name must be one of a, b, got 'c'"),
        ({"inner": None}, "runs.base.inner must be a mapping of keys to values, got null"),
        ({"inner": {"rate": 0}}, "runs.base.inner.rate must be a number greater than 0 and at most 1, got 0.0"),
        ({"inner": {"rate": "nan"}}, "runs.base.inner.rate must be a finite number, got 'nan'"),
        ({"inner": {"rate": True}}, "runs.base.inner.rate must be a number, got True"),
        ({"inner": {"every": 0}}, "runs.base.inner.every must be a whole number at least 1, got 0"),
        ({"inner": {"every": True}}, "runs.base.inner.every must be a whole number at least 1, got True"),
        ({"inner": {"every": 1.0}}, "runs.base.inner.every must be a whole number at least 1, got 1.0"),
        ({"flag": 1}, "runs.base.flag must be true or false, got 1"),
        ({"names": "a"}, "runs.base.names must be a list without repeated entries, got 'a'"),
        ({"names": ["a", 1]}, "runs.base.names[1] must be text, got 1"),
        ({"names": ["a", "a"]}, "runs.base.names must be a list without repeated entries, got ['a', 'a']"),
        ({"tasks": []}, "runs.base.tasks must be a list with at least one entry and none of them twice, got []"),
        ({"weights": ["a"]}, "runs.base.weights must be a mapping, got ['a']"),
        ({"weights": {"a": -1}}, "runs.base.weights.a must be a number at least 0, got -1.0"),
    ],
    ids=str,
)
def test_a_mistake_is_one_sentence_with_the_key_what_is_right_and_what_was_found(data, said):
    with pytest.raises(UserError) as error:
        load(**data)
    assert str(error.value) == said


def test_a_missing_key_is_named_and_what_is_no_mapping_refused():
    keys = {"steps": 3, "weights": {"a": 1}, "seq_len": 8, "global_batch_size": 2}
    with pytest.raises(UserError, match="pretrain.model is missing: it must be a mapping of keys to values"):
        recipe.load(PretrainRecipe, keys, "pretrain")
    with pytest.raises(UserError, match=r"runs\.base\.name is missing: it must be one of a, b"):
        recipe.load(Outer, {}, "runs.base")
    for data in (None, [], "a"):
        with pytest.raises(UserError, match="runs.base must be a mapping of keys to values"):
            recipe.load(Outer, data, "runs.base")


def test_a_number_may_be_whole_or_text_as_yaml_reads_it_and_null_is_nothing():
    assert load(inner={"rate": "1e-3"}).inner.rate == 0.001
    made = load(inner={"rate": 1}, count=None, weights={"a": 2})
    assert (type(made.inner.rate), type(made.weights["a"]), made.count) == (float, float, None)


def test_written_leaves_defaults_out_and_keeps_what_is_required():
    assert recipe.written(load(), "identity") == {"name": "a"}
    assert recipe.written(load(flag=False, inner={"rate": 0.5}, steps=100), "identity") == {"name": "a"}
    changed = load(flag=True, inner={"rate": 1, "every": 3}, weights={"x": 1}, steps=7)
    assert recipe.written(changed, "identity") == {
        "name": "a", "inner": {"rate": 1.0}, "flag": True, "weights": {"x": 1.0}
    }  # fmt: skip
    assert recipe.written(changed, "operation") == {"inner": {"every": 3}}
    assert recipe.written(changed, "horizon") == {"steps": 7}


def test_recipes_in_a_list_are_written_as_plain_data_and_named_by_their_place():
    assert recipe.written(load(turns=[{"rate": 1}, {"every": 3}]), "identity") == {
        "name": "a", "turns": [{"rate": 1.0}, {}]
    }  # fmt: skip
    with pytest.raises(UserError, match=r"runs\.base\.turns\[1\]\.rate must be a number greater than 0"):
        load(turns=[{"rate": 1}, {"rate": 0}])


def test_written_is_read_back_as_the_same_recipe():
    made = load(inner={"rate": "1e-3", "every": 2}, names=["x"], count=4, turns=[{"rate": 1}])
    both = [json.dumps(recipe.written(made, kind)) for kind in recipe.KINDS]
    assert recipe.load_texts(Outer, both, "x") == made


def test_a_default_is_not_shared_between_recipes():
    load().weights["a"] = 1.0
    assert load().weights == {}


def test_texts_are_json_or_files_and_later_ones_are_added(tmp_path):
    (tmp_path / "a.json").write_text('{"name": "a", "inner": {"rate": 0.25}}')
    (tmp_path / "b.yaml").write_text("inner: {every: 4}\nflag: true\n")
    made = recipe.load_texts(Outer, [str(tmp_path / "a.json"), str(tmp_path / "b.yaml"), '{"flag": false}'], "x")
    assert (made.inner, made.flag) == (Inner(rate=0.25, every=4), False)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": ', "--recipe is not valid JSON: line 1"),
        ("missing.json", "a recipe must be JSON or a readable file, got 'missing.json': No such file or directory"),
        ("[1]", "a recipe must be JSON or a readable file"),
    ],
)
def test_a_text_that_cannot_be_read_is_refused(text, said):
    with pytest.raises(UserError) as error:
        recipe.load_texts(Outer, [text], "x")
    assert str(error.value).startswith(said)


LAUGHS = "name:\n- &a0 [x, x]\n" + "".join(f"- &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 60))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "a\\u0000"}', "x.name must be text of Unicode characters without NUL, got 'a\\x00'"),
        ('{"count": 1' + "0" * 4000 + "}", "x.count must be a whole number below 2^63, got 1000"),
        ('{"inner": {"rate": 1' + "0" * 400 + "}}", "x.inner.rate must be a finite number, got 1000"),
        ('{"name": ["' + "a" * 100_000 + '"]}', "x.name must be one of a, b, got ['aaa"),
        ("a\0b", "a recipe must be JSON or a readable file, got 'a\\x00b'"),
        ("a" * 300, "a recipe must be JSON or a readable file, got 'aaa"),
        ("laughs.yaml", "x.name must be one of a, b, got [['x', 'x'], "),
        ("deep.yaml", "deep.yaml must be YAML: "),
        ("date.yaml", "date.yaml must be YAML: month must be in 1..12"),
        ("hex.yaml", "x.count must be a whole number below 2^63, got "),
        ("nul.yaml", "nul.yaml must be YAML: "),
    ],
)
def test_hostile_values_are_one_short_sentence(text, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    files = {"laughs": LAUGHS, "deep": "a: " + "[" * 5000, "nul": "a: \0"}
    files |= {"date": "name: 2025-13-13", "hex": "count: 0x" + "f" * 5000}
    for name, content in files.items():
        Path(f"{name}.yaml").write_text(content)
    with pytest.raises(UserError) as error:
        recipe.load_texts(Outer, [text], "x", {"name": "a"})
    assert str(error.value).startswith(said)
    assert len(str(error.value)) < 3000


@pytest.mark.parametrize("made", RECIPES, ids=lambda made: made.__name__)
def test_every_field_of_every_recipe_is_documented(made):
    def walk(schema, where):
        for name, field in schema["properties"].items():
            assert len(field["description"]) > 10, f"{where}.{name}"
            assert field["x-kind"] in recipe.KINDS
            if "properties" in field:
                walk(field, f"{where}.{name}")

    schema = recipe_schema.json_schema(made)
    jsonschema.Draft202012Validator.check_schema(schema)
    walk(schema, made.__name__)


@pytest.mark.parametrize(
    "data", [{}, {"inner": {"rate": "1e-3"}}, {"count": None}, {"flag": True, "names": ["x"], "weights": {"a": 1}}]
)
def test_what_is_loaded_satisfies_the_schema(data):
    load(**data)
    jsonschema.validate({"name": "a"} | data, recipe_schema.json_schema(Outer))


@pytest.mark.parametrize("data", [{"x": 1}, {"count": 0}, {"inner": {"rate": 2}}, {"flag": 1}, {"names": "x"}])
def test_what_the_schema_refuses_is_not_loaded(data):
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"name": "a"} | data, recipe_schema.json_schema(Outer))
    with pytest.raises(UserError):
        load(**data)
