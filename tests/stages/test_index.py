"""A corpus: its parts joined, each shard checked once, and whatever is wrong with one named."""

import shutil

import pytest

from stages import index, tokenize
from stages.lib import files
from tests.helpers.data_fixtures import lines_listed, listed, make, refused, texts, tokenized, trained, write_jsonl
from tests.helpers.faults import flip_bit
from tests.helpers.manifests import identity_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A corpus of two sources in two parts each."""
    directory = tmp_path_factory.mktemp("corpus")
    for name in ("a", "b"):  # a file is never cut, so it takes two for two parts
        for half in (0, 1):
            write_jsonl(directory / f"{name}{half}.jsonl", [{"text": text} for text in texts(f"{name}{half}", 40)])
    lists = {
        name: listed(directory, name, {"kind": "jsonl", "paths": [f"{directory}/{name}?.jsonl"], "validation": 0.2})
        for name in ("a", "b")
    }
    tokenizer = trained(directory, [*lists.values()], vocab_size=320, sample={"a": 1, "b": 1})
    for name, source in lists.items():
        tokenized(directory, name, source, tokenizer, parts=2)
    return directory


@pytest.fixture
def corpus(made, tmp_path):
    """A copy of it that a test may spoil."""
    shutil.copytree(made, tmp_path / "made")
    return tmp_path / "made"


def _options(corpus):
    return {
        "tokenizer": corpus / "tokenizers/main/manifest.json",
        "parts": sorted((corpus / "tokens/main").glob("*/*.json")),
        "output": corpus / "tokens/main/manifest.json",
    }


def test_sources_are_the_sum_of_their_parts_whatever_their_order_and_place(made, corpus, tmp_path):
    options = _options(corpus)
    identity = identity_of(make(index, **options))
    assert identity_of(make(index, **options | {"parts": options["parts"][::-1]})) == identity
    shutil.copytree(made, tmp_path / "elsewhere")
    assert identity_of(make(index, **_options(tmp_path / "elsewhere"))) == identity
    assert list(identity["sources"]) == ["a", "b"]
    assert identity["dtype"] == "uint16"
    for name, source in identity["sources"].items():
        parts = [identity_of(path) for path in options["parts"] if path.parent.name == name]
        assert len(parts) == 2
        for split in ("train", "validation"):
            for count in ("documents", "tokens", "text_bytes"):
                assert source[split][count] == sum(part[split][count] for part in parts)
                assert source[split][count] == sum(shard[count] for shard in source[split]["shards"])
        for file in [*source["train"]["shards"], *source["validation"]["shards"], *source["validation"]["texts"]]:
            assert files.sha256_file(options["output"].parent / file["path"]) == file["sha256"]


def test_what_stands_in_the_receipt_is_not_hashed_again(corpus, monkeypatch):
    options = _options(corpus)
    make(index, **options)
    receipt = (corpus / "tokens/main/receipt.json").read_bytes()
    hashed = []
    real = files.sha256_file
    monkeypatch.setattr(files, "sha256_file", lambda path: hashed.append(path.name) or real(path))
    make(index, **options)
    assert not [name for name in hashed if not name.startswith("tokenizer")]
    (corpus / "tokens/main/a/00001/train-00000.arrow").touch()
    make(index, **options)
    assert [name for name in hashed if not name.startswith("tokenizer")] == ["train-00000.arrow"]
    (corpus / "tokens/main/receipt.json").write_text("[]")
    make(index, **options)
    assert (corpus / "tokens/main/receipt.json").read_bytes() != receipt  # the time of the touched one


@pytest.mark.parametrize("name", ["train-00000.arrow", "validation.jsonl"])
def test_a_spoilt_or_missing_shard_is_named(corpus, capsys, name):
    options = _options(corpus)
    shard, part = corpus / "tokens/main/b/00000" / name, corpus / "tokens/main/b/00000.json"
    flip_bit(shard)
    said = f"index: {shard} changed since {part} was written: its sha256 differs; delete {part} and run"
    assert refused(capsys, index, **options).startswith(said)
    shard.unlink()
    said = f"index: {shard} is missing, but {part} lists it; delete {part} and run"
    assert refused(capsys, index, **options).startswith(said)
    assert not (corpus / "tokens/main/receipt.json").exists()


def of_another_tokenizer(corpus, part, _):
    lists = [corpus / "sources" / name / "list.json" for name in ("a", "b")]
    other = trained(corpus / "other", lists, vocab_size=310, sample={"a": 1, "b": 1})
    make(tokenize, list=lists[1], tokenizer=other, part=1, recipe={"parts": 2}, output=part)


def of_another_recipe(corpus, part, _):
    recipe, source = {"parts": 2, "bos": False}, corpus / "sources/b/list.json"
    make(tokenize, list=source, tokenizer=_options(corpus)["tokenizer"], part=1, recipe=recipe, output=part)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (of_another_tokenizer, "{part} was tokenized with a different tokenizer than {tokenizer}"),
        (of_another_recipe, "{part} and "),
        (lambda _, __, parts: parts.pop(), "--parts must name all 2 parts of b: part 1 is missing"),
        (lambda _, __, parts: parts.append(parts[0]), "--parts must name each part once"),
    ],
)
def test_parts_that_do_not_belong_together_are_named(corpus, capsys, change, said):
    options, part = _options(corpus), corpus / "tokens/main/b/00001.json"
    change(corpus, part, options["parts"])
    line = refused(capsys, index, **options)
    assert line.startswith("index: " + said.format(part=part, tokenizer=options["tokenizer"]))


@pytest.fixture
def part_of_changing_list(made, tmp_path):
    """(a function that writes a file of the source, one that lists it and makes one of its two parts)."""
    recipe = {"kind": "jsonl", "paths": [f"{tmp_path}/texts/*"], "validation": 0.2}

    def write(name, documents=40):
        write_jsonl(tmp_path / "texts" / name, [{"text": text} for text in texts(name, documents)])

    def part(number, **changed):
        source, output = listed(tmp_path, "a", recipe | changed), tmp_path / f"tokens/a/{number:05d}.json"
        options = {"list": source, "tokenizer": made / "tokenizers/main/manifest.json"}
        return make(tokenize, part=number, recipe={"parts": 2}, output=output, **options)

    return write, part


def test_parts_of_two_lists_are_refused_and_lose_no_files_between_them(made, tmp_path, capsys, part_of_changing_list):
    write, part = part_of_changing_list
    for name in "bcd":
        write(f"{name}.jsonl")
    first = part(0)  # b and c, or b alone
    for name in "efg":
        write(f"{name}.jsonl")
    second = part(1)  # the half from e on
    options = {"tokenizer": made / "tokenizers/main/manifest.json", "output": tmp_path / "tokens/manifest.json"}
    line = refused(capsys, index, parts=[first, second], **options)
    assert line == f"index: {first} and {second} were built from different file lists; rerun with -R tokenize"
    sources = identity_of(make(index, parts=[part(0), second], **options))["sources"]
    assert sources["a"]["train"]["documents"] + sources["a"]["validation"]["documents"] == 6 * 40
    line = refused(capsys, index, parts=[first, part(1, validation=0.3)], **options)
    assert line == f"index: {first} and {second} were made from lists with different source recipes"


def test_a_part_that_a_new_list_leaves_as_it_is_joins_those_of_that_list(made, tmp_path, part_of_changing_list):
    write, part = part_of_changing_list
    write("1.jsonl")
    write("2.jsonl")
    first, _ = part(0), part(1)
    before = identity_of(first)
    shards = {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens/a/00000").iterdir()}
    (tmp_path / "texts/3.jsonl").touch()
    options = {"tokenizer": made / "tokenizers/main/manifest.json", "output": tmp_path / "tokens/manifest.json"}
    make(index, parts=[part(0), part(1)], **options)
    assert identity_of(first) == before
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "tokens/a/00000").iterdir()} == shards


@pytest.mark.parametrize(
    ("entries", "validation", "said"),
    [
        ([], 0.5, "source a has no training text"),
        ([{"text": ""}], 0.5, "source a has no training text; malformed or filtered: 1 empty"),
        ([{"text": "only one"}], 0, "source a has no validation text; raise sources.a.validation"),
    ],
)
def test_an_empty_corpus_is_refused(made, tmp_path, capsys, entries, validation, said):
    tokenizer = made / "tokenizers/main/manifest.json"
    source = lines_listed(tmp_path, entries, validation=validation)
    parts = tokenized(tmp_path, "a", source, tokenizer)
    line = refused(capsys, index, tokenizer=tokenizer, parts=parts, output=tmp_path / "manifest.json")
    assert line == f"index: corpus {tmp_path}: {said}"
