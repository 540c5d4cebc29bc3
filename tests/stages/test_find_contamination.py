"""find_overlaps and find_contamination: items that stand in the shards of a corpus are found, and no others."""

import random
import shutil

import pytest

from stages import find_contamination, find_overlaps, index
from stages.lib import manifest
from stages.lib.contamination import rules
from stages.lib.contamination.items import read_lines
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import pretokenized
from tests.helpers.contamination_fixtures import source_of, write_items
from tests.helpers.data_fixtures import SYLLABLES, make, refused, run, tokenized, trained
from tests.helpers.faults import flip_bit

PARTS = 2
ORIGINAL = "several small boats were lying in the quiet harbour when a storm came up from the sea at night"
REWORDED = "a number of little boats lay in the calm harbour as the storm rose out of the ocean that night"


def some_words(chance, count):
    return [f"{chance.choice(SYLLABLES)}{chance.randrange(3000)}" for _ in range(count)]


def on_a_page(text, length):
    """A run of words from the middle of a text, in other case and punctuation."""
    words = text.split()
    begin = (len(words) - length) // 2
    return ", ".join(word.upper() for word in words[begin : begin + length])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """The directory of a corpus of two sources in two parts each, and of a suite whose items are planted in it.

    Items of the task `some`, of 25 words: 0 to 4 stand in training documents as a whole, 5 to 9 by 13 words, 10 to 14
    by 12 words, 15 in other words, 16 in the validation split, 17 to 25 nowhere. Items of the task `short`: one of 9
    words and one of 7, both in training documents.
    """
    root, chance = tmp_path_factory.mktemp("contamination"), random.Random(0)
    some = [" ".join(some_words(chance, 25)) for _ in range(26)]
    some[15] = ORIGINAL
    short = [" ".join(some_words(chance, 9)), " ".join(some_words(chance, 7))]
    planted = some[:5] + [on_a_page(text, 13) for text in some[5:10]] + [on_a_page(text, 12) for text in some[10:15]]
    documents = {name: [some_words(chance, chance.randrange(1, 200)) for _ in range(60)] for name in "ab"}
    for number, text in enumerate([*planted, REWORDED, *short]):
        document = documents["ab"[number % 2]][3 * number]
        at = chance.randrange(len(document) + 1)
        document[at:at] = ["--", text, "--"]
    lists = {name: source_of(root, name, map(" ".join, of), [some[16]]) for name, of in documents.items()}
    tokenizer = trained(root, [*lists.values()], vocab_size=400, sample={"a": 1, "b": 1}, sample_mb=0.1)
    parts = [part for name in "ab" for part in tokenized(root, name, lists[name], tokenizer, parts=PARTS)]
    make(index, tokenizer=tokenizer, parts=parts, output=root / "tokens/main/manifest.json")
    write_items(root / "suites/mine/items.json", {"some": some, "short": short})
    return root


@pytest.fixture
def copied(place, tmp_path):
    """A copy of it, for tests that change something."""
    return shutil.copytree(place, tmp_path / "copied")


def options_of_part(root, part, name="mine", **recipe):
    return {
        "items": root / f"suites/{name}/items.json",
        "part": root / f"tokens/main/{part}.json",
        "tokenizer": root / "tokenizers/main/manifest.json",
        "output": root / f"overlaps/main/{name}/{part}.json",
        "recipe": recipe,
    }


def overlaps_of(root, name="mine", **recipe):
    parts = [f"{source}/{part:05d}" for source in "ab" for part in range(PARTS)]
    return [make(find_overlaps, **options_of_part(root, part, name, **recipe)) for part in parts]


def options_of(root, overlaps, name="mine", **recipe):
    return {
        "corpus": root / "tokens/main/manifest.json",
        "items": root / f"suites/{name}/items.json",
        "overlaps": overlaps,
        "output": root / f"contamination/main/{name}.json",
        "recipe": recipe,
    }


def found_in(root, **recipe):
    """The manifest of the contamination of the corpus by the suite."""
    overlaps = overlaps_of(root, **recipe)
    return manifest.read(make(find_contamination, **options_of(root, overlaps, **recipe)), "find_contamination")


def test_each_13_gram_is_found_wherever_it_stands_and_nothing_else_is(place):
    made = found_in(place)
    assert rules.doc_ids(made) == {"some": set(range(10)), "short": {0}}
    assert made.identity["results"] == {
        "some": {"n": 26, "contaminated": 10, "rate": 10 / 26, "unchecked": 0},
        "short": {"n": 2, "contaminated": 1, "rate": 0.5, "unchecked": 1},
    }
    rows = read_lines(place / "contamination/main/mine" / rules.FILE)
    assert len(rows) == 11
    tokenizer = Tokenizer(place / "tokenizers/main/manifest.json")
    for example in (row["example"] for row in rows):  # which names the document
        part = place / f"tokens/main/{example['source']}/{example['part']:05d}.json"
        texts = dict(pretokenized.training_documents(manifest.read(part), tokenizer))
        assert "--" in texts[example["document"]]


def test_by_the_rule_of_palm_most_8_grams_of_an_item_must_be_found(place):
    made = found_in(place, rule="palm")
    assert rules.doc_ids(made) == {"some": set(range(5)), "short": {0}}
    rows = read_lines(place / "contamination/main/mine" / rules.FILE)
    shares = {row["doc_id"]: len(row["found"]) / row["ngrams"] for row in rows if row["task"] == "some"}
    assert shares == dict(enumerate([1] * 5 + [6 / 18] * 5 + [5 / 18] * 5))


def test_a_part_is_searched_again_only_if_something_changed(copied):
    options = options_of_part(copied, "a/00000") | {"code": "c1"}
    output, rows = options["output"], options["output"].with_suffix("") / find_overlaps.FILE
    make(find_overlaps, **options)
    before, searched = output.read_bytes(), rows.stat().st_mtime_ns
    output.unlink()  # as Snakemake does before a job
    make(find_overlaps, **options)
    assert output.read_bytes() == before and rows.stat().st_mtime_ns == searched
    for change in ({"code": "c2"}, {"code": "c2", "recipe": {"n": 9}}):
        make(find_overlaps, **options | change)
        assert rows.stat().st_mtime_ns != searched
        searched = rows.stat().st_mtime_ns


def test_overlaps_of_other_parts_items_or_recipes_are_refused(copied, capsys):
    overlaps = overlaps_of(copied)
    output = copied / "contamination/main/some.json"
    for wrong in (overlaps[:-1], [*overlaps, overlaps[-1]]):
        line = refused(capsys, find_contamination, **options_of(copied, wrong) | {"output": output})
        assert "--overlaps do not cover each shard of" in line and line.endswith("differ in the shards of b")
    line = refused(capsys, find_contamination, **options_of(copied, overlaps, n=9) | {"output": output})
    assert "was built with a different recipe than --recipe" in line
    write_items(copied / "suites/mine/items.json", {"some": ["another text"]})
    line = refused(capsys, find_contamination, **options_of(copied, overlaps) | {"output": output})
    assert "was built from a different item list" in line


def test_a_changed_shard_and_changed_items_are_refused(copied, capsys):
    options = options_of_part(copied, "a/00000")
    for path in (copied / "suites/mine/items/items.jsonl.gz", copied / "tokens/main/a/00000/train-00000.arrow"):
        flip_bit(path)
        assert f"{path} changed since" in refused(capsys, find_overlaps, **options)
        flip_bit(path)
    assert run(find_overlaps, **options) == 0
