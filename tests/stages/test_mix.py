"""The mix explained: what a corpus counts of its sources, before and after, and what the report shows of it."""

import json
import random
import re

import pytest

from stages import (
    copy_candidates,
    find_candidates,
    find_duplicates,
    hash_documents,
    index,
    sketch,
    tokenize,
    verify_duplicates,
)
from stages.lib import manifest
from stages.lib.pages.data import text_of
from tests.helpers.browser import browser, needs_chromium
from tests.helpers.data_fixtures import listed, make, of_parts, small_tokenizer, write_jsonl
from tests.helpers.report_fixtures import summarized, write_run

GERMAN = "Der Zug nach Hamburg hat heute leider wieder eine halbe Stunde Verspätung, wie so oft im Winter."
RECIPE = {"kind": "jsonl", "validation": 0.2, "max_malformed": 0.5}
FILTERS = {"languages": ["en"], "min_language_probability": 0}


ENGLISH = """the of and to in is was that it he for on are as with his they at be this from have or by one had not but
what all were when we there can an your which their said if do will each about how up out them then she many some"""


def text_with(name):
    """An English text of 60 words that no other has."""
    return " ".join(random.Random(name).choices(ENGLISH.split(), k=60))


def write_sources(directory):
    """Texts of two sources; return {reason: [texts that `b` loses for it]}."""
    edited = [text_with(f"near{number}") for number in range(4)]
    gone = {
        "duplicate": [*(text_with(f"same{number}") for number in range(6)), text_with("own"), text_with("own")],
        "near duplicate": [f"{text} more" for text in edited],
        "filters.languages": [GERMAN] * 3,
    }
    of_a = [*map(text_with, range(30)), *gone["duplicate"][:6], *edited]
    write_jsonl(directory / "a.jsonl", [{"text": text} for text in of_a])
    of_b = [*map(text_with, range(30, 60)), text_with("own"), *sum(gone.values(), [])]
    write_jsonl(directory / "b.jsonl", [{"text": text} for text in of_b])
    with open(directory / "b.jsonl", "a") as file:
        file.write("no json\n")
    return gone


def corpus_of(root, directory, parts):
    """Make the corpus of both sources without duplicates and near duplicates; return its manifest."""
    lists = {
        "a": listed(root, "a", RECIPE | {"paths": [str(directory / "a.jsonl")], "license": "CC0-1.0"}),
        "b": listed(root, "b", RECIPE | {"paths": [str(directory / "b.jsonl")], "filters": FILTERS}),
    }

    def each(stage, folder, **options):
        return of_parts(stage, root / folder, lists.values(), parts, **options)

    found = make(find_duplicates, hashes=each(hash_documents, "hashes", parts=parts), output=root / "hashes/all.json")
    sketches = each(sketch, "sketches", parts=parts)
    candidates = make(find_candidates, sketches=sketches, output=root / "near/candidates.json")
    copies = each(copy_candidates, "copies", parts=parts, candidates=candidates)
    near = {"candidates": candidates, "copies": copies, "duplicates": found, "output": root / "near/manifest.json"}
    options = {"tokenizer": small_tokenizer(directory / "tokenizer"), "recipe": {"parts": parts, "duplicates": "drop"}}
    options |= {"duplicates": found, "near_duplicates": make(verify_duplicates, **near)}
    made = each(tokenize, "tokens/main", **options)
    return make(index, tokenizer=options["tokenizer"], parts=made, output=root / "tokens/main/manifest.json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """(what is lost of b, results, the same of a corpus of three parts per source)."""
    directory = tmp_path_factory.mktemp("mix")
    gone = write_sources(directory)
    corpora = [corpus_of(directory / str(parts) / "results", directory, parts) for parts in (1, 3)]
    return gone, corpora[0].parents[2], [manifest.read(corpus) for corpus in corpora]


def test_records_bytes_and_duplicates_are_counted_by_reason_and_source_for_any_number_of_parts(made):
    gone, _, corpora = made
    for corpus in corpora:
        text, of_a = (text_of(corpus, source) for source in ("b", "a"))
        lost = {reason: len(found) for reason, found in gone.items()}
        # a validation document of b stays, and its copy in a goes
        across = {"duplicates_of": 6, "near_duplicates_of": 4}
        for kind, number in across.items():
            assert text.repeats[kind].get("a", 0) + of_a.repeats.get(kind, {}).get("b", 0) == number
        assert text.repeats["duplicates_of"]["b"] == 2
        of_b = lost | {"not JSON": 1}
        of_b["duplicate"] -= of_a.repeats.get("duplicates_of", {}).get("b", 0)
        of_b["near duplicate"] -= of_a.repeats.get("near_duplicates_of", {}).get("b", 0)
        assert text.dropped == {reason: number for reason, number in of_b.items() if number}
        assert text.records == 30 + 1 + sum(lost.values()) + 1
        assert text.dropped_bytes["filters.languages"] == 3 * len(GERMAN.encode())
        assert text.languages["de"] == 3 and sum(text.lengths.values()) == text.documents
        assert text.bytes_before == text.bytes + sum(text.dropped_bytes.values())
        assert text.examples["filters.languages"][0]["text"] == GERMAN
    records = [corpus.record for corpus in corpora]
    for key in ("dropped", "dropped_bytes", "languages", "lengths", "duplicates_of", "near_duplicates_of"):
        assert records[0][key] == records[1][key]


def test_the_report_shows_what_became_of_the_text_with_examples(made):
    _, root, (corpus, _) = made
    write_run(root, sources=("a", "b"), recipe={"weights": {"a": 1.0, "b": 1.0}})
    assert summarized(root) == 0
    data = re.search('<section id="data">(.*?)</section>', (root / "card.html").read_text(), re.DOTALL)[1]
    text = text_of(corpus, "b")
    for shown in (
        "exact duplicates",
        "near duplicates",
        "Der Zug nach Hamburg",
        f"{text.records:,}",
        f"{text.bytes_per_token:.2f}",
        "CC0-1.0",
        "Documents by the language that was identified",
        "Documents by their length",
    ):
        assert shown in data, shown
    assert json.dumps(GERMAN) not in data  # long examples are cut


@needs_chromium
def test_its_bars_are_drawn(made, tmp_path):
    with browser(tmp_path) as page:
        page.open(made[1] / "card.html", width=390, dark=False, settle=0.1)
        assert (page.errors, page.requests) == ([], [])
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert page.evaluate("document.querySelectorAll('#data .bars').length") == 3
