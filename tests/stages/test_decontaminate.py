"""tokenize: {decontaminate: SUITES}: training documents that hold an item are dropped by reason."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages import find_overlaps, tokenize
from stages import index as indexing
from stages.lib import manifest
from stages.lib.contamination import items
from stages.lib.tokenizer.tokenizer import Tokenizer
from tests.helpers.contamination_fixtures import source_of, write_items
from tests.helpers.data_fixtures import listed, make, refused, texts, trained
from tests.helpers.manifests import documents_of, filtered_of, shards_of

ITEM = "the harbour master counted forty grey boats before the storm reached the outer wall at nine"
OTHER = "nobody in the village had seen a comet as bright as this one since the great frost of that year"
RECIPE = {"decontaminate": ["mine"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A source with ITEM in two training documents and one of validation, its tokenizer, and a suite."""
    root, chance = tmp_path_factory.mktemp("decontaminate"), random.Random(0)
    train = [text for text in texts("a", 60) if text.strip()]
    clean = list(train)
    for _ in range(2):
        at = chance.randrange(len(train) + 1)
        train.insert(at, f"{texts('b', 1)[0]}\n{ITEM.title()}! {texts('c', 1)[0]}")
    source, without = source_of(root, "a", train, [ITEM, "more"]), source_of(root, "clean", clean, [ITEM, "more"])
    trained(root, [source], vocab_size=320, sample={"a": 1}, sample_mb=0.1)
    write_items(root / "suites/mine/items.json", {"some": [ITEM, OTHER]})
    write_items(root / "suites/other/items.json", {"some": [OTHER]}, "other")
    return {"root": root, "list": source, "clean": without, "train": len(train)}


def options_of(place, output, suites=("mine",), **recipe):
    return {
        "list": place["list"],
        "tokenizer": place["root"] / "tokenizers/main/manifest.json",
        "part": 0,
        "recipe": recipe,
        "output": output,
        **({"items": [place["root"] / f"suites/{suite}/items.json" for suite in suites]} if suites else {}),
    }


def test_training_documents_with_an_item_are_dropped_and_validation_stays(place, tmp_path):
    part = make(tokenize, **options_of(place, tmp_path / "a/00000.json", **RECIPE))
    assert filtered_of(part) == {"contaminated": 2}
    assert documents_of(part) == place["train"] - 2 + 2
    of_suite = place["root"] / "suites/mine/items.json"
    assert manifest.read(part).identity["decontaminate"] == {"mine": manifest.read(of_suite).digest}
    clean = make(tokenize, **options_of(place, tmp_path / "b/00000.json", ()) | {"list": place["clean"]})
    assert shards_of(part) == shards_of(clean), "what stays is what a source without these documents gives"
    without = make(tokenize, **options_of(place, tmp_path / "c/00000.json", ()))
    identity = manifest.read(without).identity
    assert "decontaminate" not in identity and identity["recipe"] == {}, "without the key it is as before"
    for number, searched in enumerate((part, without)):
        options = {"items": of_suite, "part": searched, "tokenizer": place["root"] / "tokenizers/main/manifest.json"}
        found = make(find_overlaps, **options, output=tmp_path / f"overlaps/{number}.json")
        assert len(items.read_rows(manifest.read(found))) == number


def test_a_part_is_made_again_if_the_items_or_suites_change_and_only_then(place, tmp_path):
    options = options_of(place, tmp_path / "a/00000.json", **RECIPE)
    make(tokenize, **options)
    (shard,) = (tmp_path / "a/00000").glob("train-*.arrow")
    before = shard.stat().st_mtime_ns
    make(tokenize, **options)
    assert shard.stat().st_mtime_ns == before
    changed = write_items(tmp_path / "suites/mine/items.json", {"some": [OTHER]})
    make(tokenize, **options | {"items": changed})
    assert shard.stat().st_mtime_ns != before
    assert filtered_of(tmp_path / "a/00000.json") == {}
    recipe = {"decontaminate": ["mine", "other"], "decontaminate_ngram": 4}  # several suites, and a shorter n-gram
    part = make(tokenize, **options_of(place, tmp_path / "a/00000.json", ["other", "mine"], **recipe))
    assert filtered_of(part) == {"contaminated": 2}


def test_pretokenized_documents_are_searched_as_text(place, tmp_path):
    tokenizer = Tokenizer(place["root"] / "tokenizers/main/manifest.json")
    ids = tokenizer.encode([f"before {ITEM} after", "another text", OTHER])
    pq.write_table(pa.table({"ids": [each.tolist() for each in ids]}), tmp_path / "a.parquet")
    recipe = {"kind": "parquet", "paths": [str(tmp_path / "a.parquet")], "token_ids_field": "ids", "validation": 0}
    options = options_of(place, tmp_path / "a/00000.json", **RECIPE) | {"list": listed(tmp_path, "ids", recipe)}
    assert filtered_of(make(tokenize, **options)) == {"contaminated": 2}


def test_items_of_other_suites_than_the_recipe_names_are_refused(place, tmp_path, capsys):
    for suites, recipe, said in (
        ((), RECIPE, "--items must be the items of mine, as tokenize.decontaminate, got none"),
        (["other"], RECIPE, "--items must be the items of mine, as tokenize.decontaminate, got other"),
        (["mine"], {}, "--items must be left out without decontaminate, got mine"),
    ):
        assert said in refused(capsys, tokenize, **options_of(place, tmp_path / "a/00000.json", suites, **recipe))


def test_parts_that_leave_out_different_items_make_no_corpus(place, tmp_path, capsys):
    options = options_of(place, tmp_path / "a/00000.json", parts=2, **RECIPE)
    parts = [make(tokenize, **options)]
    changed = write_items(tmp_path / "suites/mine/items.json", {"some": [OTHER]})
    parts.append(make(tokenize, **options | {"part": 1, "items": changed, "output": tmp_path / "a/00001.json"}))
    output = tmp_path / "manifest.json"
    line = refused(capsys, indexing, tokenizer=options["tokenizer"], parts=parts, output=output)
    assert "a/00001.json must leave out the items of" in line
