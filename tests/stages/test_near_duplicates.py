"""Near duplicates: what is removed was compared with what stays, whatever the parts; templates and chains stay."""

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import copy_candidates, find_candidates, sketch, tokenize, verify_duplicates
from stages.lib.sources import near_duplicates, shingles, spans
from tests.helpers.data_fixtures import listed, make, of_parts, refused, write_jsonl
from tests.helpers.manifests import contents_of, record_of
from tools.inspect import __main__ as inspect

CHANCE = random.Random(7)
WORDS = ["".join(CHANCE.choices("abcdefghijklmnopqrstuvwxyz", k=CHANCE.randint(2, 9))) for _ in range(5000)]


def words(count, seed):
    return random.Random(seed).choices(WORDS, k=count)


def edited(text, share, seed):
    """A copy with a share of its words replaced at random places."""
    chance = random.Random(seed)
    return [chance.choice(WORDS) + "x" if chance.random() < share else word for word in text]


@pytest.fixture(scope="module", autouse=True)
def parts_of_small_files():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "WHOLE_BYTES", 256)
        yield


def verified(directory, lists, parts=1, **recipe):
    """The manifest of verify_duplicates for some sources, through all stages."""
    sketches = of_parts(sketch, directory / "sketches", lists, parts, parts=parts)
    candidates = make(find_candidates, sketches=sketches, output=directory / "near/candidates.json")
    copies = of_parts(copy_candidates, directory / "near", lists, parts, parts=parts, candidates=candidates)
    output = directory / "near/manifest.json"
    return make(verify_duplicates, candidates=candidates, copies=copies, recipe=recipe, output=output)


def evidence(manifest):
    with pa.memory_map(str(manifest.parent / "removed.arrow")) as mapped:
        return pa.ipc.open_file(mapped).read_all().to_pylist()


def source_of(directory, name, texts, **recipe):
    path = write_jsonl(directory / f"{name}.jsonl", [{"text": text, "id": f"{at}"} for at, text in enumerate(texts)])
    return listed(directory, name, {"kind": "jsonl", "paths": [path], "validation": 0, **recipe})


def trained_on(directory, lists, tokenizer, parts, found):
    """(number of training documents, validation texts, {reason: number}) of all parts, tokenized."""
    options = {"tokenizer": tokenizer, "recipe": {"parts": parts}, "near_duplicates": found}
    return contents_of(of_parts(tokenize, directory / "tokens", lists, parts, **options))


def test_edited_copies_go_and_the_evidence_names_what_stays(tmp_path, tokenizer, capsys):
    originals = [words(200, seed) for seed in range(40)]
    copies = [[*text[:50], "edit", *text[51:120], *text[121:]] for text in originals[:15]]
    again = [" ,".join(text).upper() for text in originals[:5]]  # the same words
    lists = [
        source_of(tmp_path, "a", map(" ".join, originals)),
        source_of(tmp_path, "b", [*map(" ".join, copies), *again, "", "!?"]),
    ]
    found = verified(tmp_path / "results", lists)
    rows = evidence(found)
    assert [row["removed_number"] for row in rows] == [*range(20)]
    assert {(row["removed_source"], row["kept_source"]) for row in rows} == {("b", "a")}
    assert all(row["overlap"] == 1 and row["changed_words"] == 0 for row in rows if row["removed_number"] >= 15)
    for row in rows:
        assert row["kept_number"] == row["removed_number"] % 15
        one, other = (
            {tuple(text[at : at + 5]) for at in range(len(text) - 4)}
            for text in (originals[row["kept_number"]], [*copies, *originals[:5]][row["removed_number"]])
        )
        assert row["overlap"] == pytest.approx(len(one & other) / len(one | other))
    documents, _, dropped = trained_on(tmp_path, lists, tokenizer, 1, found)
    assert (documents, dropped) == (41, {"near duplicate": 20, "empty": 1})
    capsys.readouterr()
    look = ["--duplicates", str(found), "--documents", "2"]
    assert inspect.main(look) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("20 of 62 documents were removed as near duplicates\n  20 of b, for documents of a\n")
    assert shown.count("removed (train)") == shown.count("kept (train)") == 2
    assert "[edit]" in shown and "longest changed passage 0 words" in shown
    (tmp_path / "b.jsonl").write_text('{"text": "another", "id": "0"}\n')
    assert inspect.main(look) == 2
    assert "b.jsonl has 31 bytes, but " in capsys.readouterr().err


def test_pages_of_one_template_and_the_ends_of_a_chain_stay(tmp_path):
    frame = words(190, "frame")
    pages = [[*frame[:100], *words(9, f"page {seed}"), *frame[100:]] for seed in range(30)]
    frame = words(190, "another frame")
    weather = [[*frame[:60], city, *frame[60:130], str(day), *frame[130:]] for city in WORDS[:8] for day in range(8)]
    random.Random(1).shuffle(weather)
    chain = [words(200, "chain")]
    for link in range(4):
        chain.append([*chain[-1][12:], *words(12, f"link {link}")])
    texts = [*pages, *weather, *chain]
    found = verified(tmp_path, [source_of(tmp_path, "a", map(" ".join, texts))])
    rows = evidence(found)
    first = len(pages) + len(weather)
    # of the chain, each second: the one before it is gone, and what is further away differs
    assert [(row["removed_number"] - first, row["kept_number"] - first) for row in rows] == [(1, 0), (3, 2)]
    assert record_of(found)["refused"]["keep_templates"] > 60


def test_a_copy_within_a_family_of_one_template_goes(tmp_path):
    frame = words(100, "frame")
    pages = [[*frame, *words(150, f"page {seed}")] for seed in range(20)]
    texts = [*pages, edited(pages[11], 0.01, "copy")]
    (row,) = evidence(verified(tmp_path, [source_of(tmp_path, "a", map(" ".join, texts))]))
    assert (row["removed_number"], row["kept_number"]) == (20, 11)


@pytest.mark.parametrize(
    ("recipe", "refused_by"),
    [
        ({"min_length_ratio": 0.99}, "min_length_ratio"),
        ({"max_changed_words": 5}, "max_changed_words"),
        ({"min_overlap": 0.99}, "min_overlap"),
        ({}, None),
    ],
)
def test_each_condition_keeps_what_does_not_meet_it(tmp_path, recipe, refused_by):
    text = words(300, 1)
    found = verified(tmp_path, [source_of(tmp_path, "a", [" ".join(text), " ".join([*text, *words(9, 2)])])], **recipe)
    assert record_of(found)["refused"] == ({refused_by: 1} if refused_by else {})
    assert len(evidence(found)) == (refused_by is None)


@given(
    families=st.lists(
        st.lists(st.tuples(st.sampled_from([0, 0.01, 0.03, 0.3]), st.sampled_from("ab")), min_size=1, max_size=6),
        min_size=1,
        max_size=8,
    ),
    seed=st.integers(0, 1 << 30),
)
@settings(deadline=None, max_examples=4)
def test_no_near_copy_of_a_held_out_text_is_trained_on_whatever_the_parts(families, seed, tokenizer, tmp_path_factory):
    texts = {"a": [], "b": []}
    for family, members in enumerate(families):
        original = words(150, f"{seed} {family}")
        for member, (share, name) in enumerate(members):
            texts[name].append(" ".join(edited(original, share, f"{seed} {family} {member}")))
    texts = {name: random.Random(seed).sample(found, len(found)) or ["alone"] for name, found in texts.items()}
    removed = []
    for parts in (1, 4):
        directory = tmp_path_factory.mktemp(f"parts{parts}")
        lists = [source_of(directory, name, found, validation=0.3, id_field="id") for name, found in texts.items()]
        found = verified(directory, lists, parts)
        rows = evidence(found)
        removed.append([{key: row[key] for key in row if not key.endswith(("_part", "_number"))} for row in rows])
    assert removed[0] == removed[1]
    assert all((row["removed_split"], row["kept_split"]) != ("validation", "train") for row in removed[0])
    documents, held, _ = trained_on(directory, lists, tokenizer, parts, found)
    gone = {(row["removed_source"], row["removed_id"]) for row in removed[0]}
    stay = [text for name, found in texts.items() for at, text in enumerate(found) if (name, f"{at}") not in gone]
    assert documents + len(held) == len(stay)
    sets = {text: np.unique(shingles.shingles_of(*shingles.words_of([text]), 5)[0]) for text in stay}
    for text in set(stay) - set(held):
        assert all(near_duplicates.overlap_of(sets[text], sets[other]) < 0.8 for other in held)


def test_candidates_are_found_as_often_as_bands_promise(tmp_path):
    """Against theory, with the recipe's defaults, at overlaps where it is neither 0 nor 1."""
    recipe, total, seen, expected = near_duplicates.SketchRecipe(), 3000, [], []
    for share in (0.01, 0.03, 0.05, 0.1):
        originals = [words(120, f"{share} {seed}") for seed in range(total // 4)]
        copies = [edited(text, share, f"copy {seed}") for seed, text in enumerate(originals)]
        found, counts = shingles.shingles_of(
            *shingles.words_of([" ".join(text) for text in [*originals, *copies]]), recipe.shingle_words
        )
        keys = shingles.band_keys(found, counts, recipe.bands, recipe.rows)
        seen += (keys[:, : len(originals)] == keys[:, len(originals) :]).any(axis=0).tolist()
        sets = [np.unique(one) for one in np.split(found, np.cumsum(counts)[:-1])]
        for one, other in zip(sets[: len(originals)], sets[len(originals) :], strict=True):
            overlap = near_duplicates.overlap_of(one, other)
            expected.append(shingles.probability(overlap, recipe.bands, recipe.rows))
    assert np.mean(seen) == pytest.approx(np.mean(expected), abs=0.02)
    assert 0.3 < np.mean(seen) < 0.95


@given(st.lists(st.text(max_size=40), max_size=8), st.integers(1, 4))
@settings(deadline=None)
def test_shingles_of_a_batch_are_those_of_each_text_alone(texts, length):
    together = shingles.shingles_of(*shingles.words_of(texts), length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shingles, "POWERS", 64)  # longer than any word
        long_text = shingles.shingles_of(*shingles.words_of(texts), length)
    assert [one.tolist() for one in long_text] == [one.tolist() for one in together]
    alone = [shingles.shingles_of(*shingles.words_of([text]), length) for text in texts]
    assert together[1].tolist() == [int(counts[0]) for _, counts in alone]
    assert together[0].tolist() == [value for found, _ in alone for value in found.tolist()]


def test_a_threshold_that_the_bands_miss_is_a_mistake(tmp_path, capsys):
    options = {"candidates": tmp_path / "none", "copies": [tmp_path / "none"], "recipe": {"min_overlap": 0.3}}
    line = refused(capsys, verify_duplicates, **options, output=tmp_path / "manifest.json")
    assert "sketch must find at least 95% of the documents that overlap by min_overlap 0.3, but " in line
