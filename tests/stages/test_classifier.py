"""Quality classifiers: two kinds of text are told apart, scores decide what stays, and all that reads follows."""

import json
import random
import re

import pytest
from safetensors.numpy import load_file

from stages import find_duplicates, hash_documents, sketch, tokenize, train_classifier
from stages import list as listing
from stages.lib.sources import spans
from tests.helpers.data_fixtures import listed, make, of_parts, run, write_jsonl
from tests.helpers.manifests import contents_of
from tests.helpers.report_fixtures import summarized
from tools.inspect import __main__ as inspect_main
from tools.verify import __main__ as verify

CHANCE = random.Random(3)
COMMON = ["".join(CHANCE.choices("abcdefgh", k=5)) for _ in range(300)]
FINE, POOR = (["".join(CHANCE.choices(letters, k=6)) for _ in range(60)] for letters in ("mnopqr", "stuvwx"))


def texts(special, count, seed, share=0.08):
    """Texts of common words and a few special ones."""
    chance = random.Random(seed)
    return [
        " ".join(chance.choice(special if chance.random() < share else COMMON) for _ in range(80)) for _ in range(count)
    ]


@pytest.fixture(scope="module", autouse=True)
def parts_of_small_files():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "WHOLE_BYTES", 256)
        yield


def recipe_of(directory, name, entries, **recipe):
    path = write_jsonl(directory / f"{name}.jsonl", [{"text": text} for text in entries])
    return {"kind": "jsonl", "paths": [path], "validation": 0, **recipe}


def source_of(directory, name, entries, **recipe):
    return listed(directory, name, recipe_of(directory, name, entries, **recipe))


def classifier(directory, good, bad, name="main", **recipe):
    """The manifest of a classifier of two lists."""
    keys = {"good": [good.parent.name], "bad": [bad.parent.name], **recipe}
    output = directory / f"classifiers/{name}/manifest.json"
    return make(train_classifier, lists=[good, bad], recipe=keys, output=output)


def of_two_kinds(directory, **recipe):
    return classifier(
        directory,
        source_of(directory, "fine", texts(FINE, 300, 1)),
        source_of(directory, "poor", texts(POOR, 300, 2)),
        **recipe,
    )


def mixed(directory, made, name="mixed", **quality):
    """The list of a source of both kinds, filtered."""
    entries = [*texts(FINE, 100, 11), *texts(POOR, 100, 12)]
    random.Random(5).shuffle(entries)
    recipe = recipe_of(directory, "mixed", entries, filters={"quality": {"classifier": "main", **quality}})
    recipe["validation"] = 0.1
    output = directory / f"sources/{name}/list.json"
    return make(listing, name=name, recipe=recipe, classifier=made, output=output)


def read(path):
    return json.loads(path.read_text())


def tokenized(directory, source, tokenizer, parts=1):
    return of_parts(tokenize, directory / "tokens/main", [source], parts, tokenizer=tokenizer, recipe={"parts": parts})


def kept(parts):
    """(number of documents, of dropped ones by reason, sorted validation texts) of some parts."""
    documents, held, dropped = contents_of(parts)
    return documents + len(held), dropped, sorted(held)


def is_fine(text):
    return any(word in FINE for word in text.split())


def test_two_kinds_of_text_are_told_apart_as_the_report_shows_and_random_labels_are_not(tmp_path):
    made = read(of_two_kinds(tmp_path))
    record = made["record"]
    assert record["accuracy"] > 0.95 and record["roc_auc"] > 0.99
    assert {*record["words"]["good"][:10]} <= {*FINE} and {*record["words"]["bad"][:10]} <= {*POOR}
    goods, bads = [row[1] for row in record["curve"]], [row[2] for row in record["curve"]]
    assert goods == sorted(goods, reverse=True) and bads == sorted(bads, reverse=True)
    for kind in ("good", "bad"):
        assert sum(record["documents"][kind].values()) == 300 and 10 <= record["documents"][kind]["held_out"] < 60
    mixed(tmp_path, tmp_path / "classifiers/main/manifest.json", min_score=0.5)
    assert summarized(tmp_path) == 0  # the report shows what each threshold keeps
    data = re.search('<section id="data">(.*?)</section>', (tmp_path / "card.html").read_text(), re.DOTALL)[1]
    for shown in (f"{record['accuracy']:.1%}", f"{record['roc_auc']:.3f}", record["words"]["bad"][0], "main: good"):
        assert shown in data, shown
    assert re.findall(r"<td[^>]*>(\d+%)</td>", data) == [f"{share:.0%}" for share in goods + bads]
    one, other = (source_of(tmp_path, name, texts(FINE, 1500, seed)) for name, seed in (("one", 5), ("other", 6)))
    guessed = read(classifier(tmp_path, one, other, name="random"))["record"]
    assert 0.4 < guessed["accuracy"] < 0.6 and 0.4 < guessed["roc_auc"] < 0.6


def test_copies_count_once_a_sample_is_drawn_by_hash_and_a_rerun_has_the_same_bytes(tmp_path):
    entries = texts(FINE, 200, 1)
    bad = source_of(tmp_path, "poor", texts(POOR, 200, 2))
    plain = classifier(tmp_path, source_of(tmp_path, "fine", entries), bad)
    weights = plain.parent / "weights.safetensors"
    before, identity = weights.read_bytes(), read(plain)["identity"]
    classifier(tmp_path, tmp_path / "sources/fine/list.json", bad)
    assert (weights.read_bytes(), read(plain)["identity"]) == (before, identity)
    again = source_of(tmp_path, "fine", [*entries[::-1], *entries])
    assert classifier(tmp_path, again, bad) == plain and weights.read_bytes() == before
    assert read(plain)["identity"]["trained_on"] != identity["trained_on"]
    few = read(classifier(tmp_path, again, bad, name="few", max_documents=150, num_features=2048))
    assert sum(few["record"]["documents"]["good"].values()) == 150
    assert load_file(tmp_path / "classifiers/few/weights.safetensors")["weight"].shape == (2048,)


def test_documents_are_kept_by_their_score_or_drawn_by_it_and_their_text_whatever_the_parts(tmp_path, tokenizer):
    made = of_two_kinds(tmp_path)
    source = mixed(tmp_path, made, min_score=0.5)
    (whole,) = parts = tokenized(tmp_path, source, tokenizer)
    documents, dropped, held = kept(parts)
    assert 95 <= documents <= 105 and dropped == {"filters.quality": 200 - documents}
    assert held and sum(is_fine(text) for text in held) > 0.8 * len(held)
    assert all(0 <= example["value"] < 0.5 for example in read(whole)["record"]["dropped_examples"]["filters.quality"])
    assert kept(tokenized(tmp_path / "three", source, tokenizer, 3)) == (documents, dropped, held)

    source = mixed(tmp_path, made, name="drawn", pareto_alpha=3)
    documents, dropped, held = kept(tokenized(tmp_path / "drawn", source, tokenizer))
    assert kept(tokenized(tmp_path / "drawn in three", source, tokenizer, 3)) == (documents, dropped, held)
    # (2 - score)^-3 is about 1 / 3 for a score of 0.55 and 1 for 1: more of the bad go than of the good
    assert 40 < documents < 160 and dropped == {"filters.quality": 200 - documents}
    assert sum(map(is_fine, held)) > len(held) / 2
    more = kept(tokenized(tmp_path / "more", mixed(tmp_path, made, name="more", pareto_alpha=1e-9), tokenizer))
    assert more[0] == 200


def test_another_classifier_changes_all_that_reads_the_source(tmp_path, tokenizer, capsys):
    def identities():
        parts = {"list": source, "part": 0, "parts": 1}
        hashes = make(hash_documents, **parts, output=tmp_path / "hashes/main/mixed/00000.json")
        sketches = make(sketch, **parts, output=tmp_path / "sketches/main/mixed/00000.json")
        (part,) = tokenized(tmp_path, source, tokenizer)
        return [read(path)["identity"] for path in (source, hashes, sketches, part)]

    made = of_two_kinds(tmp_path)
    source = mixed(tmp_path, made, min_score=0.5)
    before = identities()
    assert len({identity["classifier"] for identity in before}) == 1
    hashes, repeated = tmp_path / "hashes/main/mixed/00000.json", tmp_path / "hashes/main/manifest.json"
    make(find_duplicates, hashes=[hashes], output=repeated)
    assert verify.main([str(source), "--chain"]) == 0
    said = capsys.readouterr().out
    assert "train_classifier" in said and "1 raw file of fine" in said and "1 raw file of poor" in said
    of_two_kinds(tmp_path, seed=1)
    code = run(hash_documents, list=source, part=0, parts=1, output=tmp_path / "hashes/main/mixed/00000.json")
    assert code == 2 and "rerun with -R list" in capsys.readouterr().err
    mixed(tmp_path, made, min_score=0.5)
    dropping = {"tokenizer": tokenizer, "recipe": {"duplicates": "drop"}, "output": tmp_path / "dropped/00000.json"}
    assert run(tokenize, list=source, part=0, duplicates=repeated, **dropping) == 2
    assert "is older than the part's current files; rerun with -R hash_documents" in capsys.readouterr().err
    after = identities()
    assert all(one["classifier"] != other["classifier"] for one, other in zip(before, after, strict=True))


def test_a_preview_shows_what_a_score_would_remove_or_that_no_classifier_is_there(tmp_path, capsys):
    tried = '{"quality": {"classifier": "main", "min_score": 0.5}}'
    plain = source_of(tmp_path, "fine", texts(FINE, 300, 1))
    assert inspect_main.main(["--source", str(plain), "--filters", tried]) == 2
    assert "the classifier main is not trained yet" in capsys.readouterr().err
    source = mixed(tmp_path, of_two_kinds(tmp_path), min_score=0.5)
    assert inspect_main.main(["--source", str(source), "--filters"]) == 0
    of_source = capsys.readouterr().out
    assert "filters.quality" in of_source and "main, min_score 0.5" in of_source
    assert inspect_main.main(["--source", str(plain), "--filters", tried]) == 0
    share = re.search(r"main, min_score 0.5 +\d+ +([\d.]+)%", capsys.readouterr().out)
    assert share is None or float(share[1]) < 3  # it was trained on this text
    assert inspect_main.main(["--source", str(source)]) == 0
    assert "filtered: " in capsys.readouterr().out


def test_mistakes_are_one_sentence_and_leave_nothing(tmp_path, capsys):
    good = source_of(tmp_path, "fine", texts(FINE, 30, 1))
    bad = source_of(tmp_path, "poor", texts(POOR, 300, 2))
    output = tmp_path / "classifiers/main/manifest.json"

    def refused(recipe, lists=(good, bad)):
        assert run(train_classifier, lists=[*lists], recipe=recipe, output=output) == 2
        assert not output.exists() and not [*tmp_path.glob("classifiers/main/*")]
        return capsys.readouterr().err

    assert "train_classifier.good must have at least 10 documents" in refused({"good": ["fine"], "bad": ["poor"]})
    assert "must share no source, got 'poor' in both" in refused({"good": ["poor"], "bad": ["poor"]})
    assert "else must be one of the sources in --lists" in refused({"good": ["else"], "bad": ["poor"]})
    none = {"kind": "jsonl", "paths": [str(tmp_path / "fine.jsonl")], "filters": {"min_words": 1000}}
    nothing = listed(tmp_path, "nothing", none)
    said = refused({"good": ["nothing"], "bad": ["poor"]}, [nothing, bad])
    assert "sources.nothing.filters leave nothing of 30 records" in said

    def not_listed(quality, **more):
        recipe = recipe_of(tmp_path, "fine", texts(FINE, 30, 1), filters={"quality": quality})
        assert run(listing, name="new", recipe=recipe, output=tmp_path / "new.json", **more) == 2
        assert not (tmp_path / "new.json").exists()
        return capsys.readouterr().err

    assert "must have min_score or pareto_alpha, got neither" in not_listed({"classifier": "main"})
    both = {"classifier": "main", "min_score": 0.5, "pareto_alpha": 9}
    assert "got min_score and pareto_alpha" in not_listed(both)
    assert "--classifier must name the manifest" in not_listed({"classifier": "main", "min_score": 0.5})
    other = {"classifier": "main", "min_score": 0.5}
    assert "expected one of stages.train_classifier" in not_listed(other, classifier=good)
