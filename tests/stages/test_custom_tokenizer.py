"""A tokenizer.json of the user's goes through all stages with its own ids, or a sentence says why not."""

import json

import pytest
from hypothesis import given, settings
from tokenizers import Tokenizer as Theirs
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from stages import convert, evaluate, index, tokenize, train_tokenizer
from stages.lib import manifest
from stages.lib.parity import tokenizer_parity
from stages.lib.tokenizer import fast
from stages.lib.tokenizer.edge_cases import EDGE_CASES
from stages.lib.tokenizer.tokenizer import SPACE, Tokenizer
from stages.lib.tokens.corpus import Corpus
from tests.helpers import custom_tokenizers, training
from tests.helpers.custom_tokenizers import BOS, EOS, taken
from tests.helpers.data_fixtures import (
    SOURCES,
    lines_listed,
    make,
    refused,
    texts,
    tokenized,
    trained,
)
from tests.stages.lib.tokenizer.test_fast import hostile
from tools.generate import __main__ as generate


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("own")


@pytest.fixture(scope="module")
def path(directory):
    """A tokenizer.json of Llama 3's kind."""
    return custom_tokenizers.write(directory / "mine" / "tokenizer.json")


@pytest.fixture(scope="module")
def ours(directory, path):
    return Tokenizer(taken(path, directory))


def test_its_ids_stay_and_special_tokens_never_arise_from_text(ours, path):
    theirs = Theirs.from_file(str(path))
    assert (ours.bos, ours.eos, ours.vocab_size) == (theirs.token_to_id(BOS), theirs.token_to_id(EOS), 403)
    for text in EDGE_CASES:
        (ids,) = ours.encode([text])
        if "<|" not in text:
            assert ids.tolist() == theirs.encode(text, add_special_tokens=False).ids
        assert not {ours.bos, ours.eos}.intersection(ids.tolist())


def test_transformers_gives_the_same_ids_of_any_text(ours):
    packaged = tokenizer_parity.load_tokenizer(ours.manifest.directory)

    @settings(max_examples=150, deadline=None)
    @given(hostile)
    def check(text):
        (expected,) = ours.encode([text])
        assert packaged.encode(text) == [ours.bos, *expected.tolist()]
        assert packaged.decode(expected) == text

    check()


@pytest.mark.parametrize(
    "kind", [{}, {"ignore_merges": False}, {"normal_form": "NFC"}, {"pattern": custom_tokenizers.OTHER}]
)
def test_kinds_that_differ_keep_their_ids_too(tmp_path, kind, capsys):
    path = custom_tokenizers.write(tmp_path / "tokenizer.json", **kind)
    ours, theirs = Tokenizer(taken(path, tmp_path)), Theirs.from_file(str(path))
    assert ("edge cases are not decoded to the text that was encoded (a normalizer," in capsys.readouterr().err) == (
        "normal_form" in kind
    )
    documents = [text for text in EDGE_CASES if "<|" not in text]
    ids, name = fast.encode_exactly(ours, lambda encoder: (encoder.encode(documents), encoder.name))
    assert name.startswith("tokenizers " if "pattern" in kind else "gigatoken ")
    for text, found in zip(documents, ids, strict=True):
        assert found.tolist() == theirs.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("kind", ["bpe", "unigram", {}, {"pattern": custom_tokenizers.OTHER}])
def test_the_bytes_of_ids_add_up_to_those_of_any_text(tmp_path, kind):
    if isinstance(kind, dict):
        ours = Tokenizer(taken(custom_tokenizers.write(tmp_path / "tokenizer.json", **kind), tmp_path))
    else:
        source = lines_listed(tmp_path, texts("a", 40), validation=0)
        ours = Tokenizer(trained(tmp_path, [source], vocab_size=320, model=kind, sample={"a": 1}))
    sizes = ours.bytes_of_ids()
    assert sizes[[ours.bos, ours.eos]].tolist() == [0, 0]
    documents = [text for text in EDGE_CASES if SPACE not in text]
    assert len(documents) > 10
    for text, ids in zip(documents, ours.encode(documents), strict=True):
        assert sizes[ids].sum() == len(text.encode()), text


def test_the_bytes_of_ids_that_do_not_add_up_are_scaled_to_those_of_the_text(tmp_path):
    """A tokenizer that folds letters, splits at spaces and has an unknown word, as BERT's."""
    theirs = Theirs(models.WordPiece(unk_token="[UNK]"))
    theirs.normalizer, theirs.decoder = normalizers.BertNormalizer(), decoders.WordPiece()
    theirs.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=["[UNK]", BOS, EOS], show_progress=False)
    theirs.train_from_iterator(texts("a", 40), trainer)
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer(taken(tmp_path / "tokenizer.json", tmp_path))
    source = lines_listed(tmp_path, [f"\u00c9t\u00e9  {text.upper()}" for text in texts("a", 60)], validation=0.5)
    parts = tokenized(tmp_path, "a", source, ours.manifest.path)
    corpus = Corpus(make(index, tokenizer=ours.manifest.path, parts=parts, output=tmp_path / "tokens/manifest.json"))
    ids = corpus.stream("a", "validation").read(0, 10**6)
    expected = corpus.sources["a"]["validation"]["text_bytes"]
    assert ours.bytes_of_ids()[ids].sum() != expected
    assert corpus.bytes_of_ids("a")[ids].sum() == pytest.approx(expected)


def test_what_is_cut_filled_up_or_put_behind_a_text_is_left_out(tmp_path, path):
    package = json.loads(path.read_bytes())
    package["truncation"] = {"direction": "Right", "max_length": 5, "strategy": "LongestFirst", "stride": 0}
    package["padding"] = {
        **{"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": None},
        **{"pad_id": 0, "pad_type_id": 0, "pad_token": "!"},
    }
    package["post_processor"] = None
    changed = custom_tokenizers.write_package(tmp_path / "tokenizer.json", package)
    ours = Tokenizer(taken(changed, tmp_path))
    assert len(ours.encode(["a long text of many words " * 9])[0]) > 9
    assert tokenizer_parity.load_tokenizer(ours.manifest.directory).encode("a")[0] == ours.bos


def test_the_place_of_the_file_is_no_part_of_the_tokenizer(tmp_path, path, ours):
    elsewhere = tmp_path / "elsewhere.json"
    elsewhere.write_bytes(path.read_bytes())
    made = manifest.read(taken(elsewhere, tmp_path))
    assert made.digest == ours.digest
    assert made.record["taken"]["path"] == str(elsewhere)


def test_one_token_for_bos_and_eos_bears_no_document_mask(tmp_path, path, capsys):
    recipe = {"path": str(path), "bos": EOS, "eos": EOS}
    tokenizer = make(train_tokenizer, recipe=recipe, output=tmp_path / "tokenizers/main/manifest.json")
    corpus = made_corpus(tmp_path, tokenizer)
    capsys.readouterr()
    assert training.train(corpus, tmp_path, 4, steps=4, recipe=training.RECIPE | {"document_mask": True}) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("pretrain: pretrain.document_mask must be false if BOS and EOS are one token")


def test_a_token_that_was_not_special_becomes_it(tmp_path, path):
    package = json.loads(path.read_bytes())
    package["added_tokens"][1]["special"] = False
    ours = Tokenizer(taken(custom_tokenizers.write_package(tmp_path / "tokenizer.json", package), tmp_path))
    assert ours.eos not in ours.encode([f"a{EOS}b"])[0].tolist()
    exported = tokenizer_parity.load_tokenizer(tmp_path / "tokenizers" / "main")
    assert exported.encode(f"a{EOS}b")[1:] == [*ours.encode([f"a{EOS}b"])[0]]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "nowhere.json"}, "path must name a tokenizer.json, and nowhere.json cannot be read: No such file"),
        ({"bos": "<s>"}, "bos must be a token of {path}, got '<s>'"),
        ({"bos": None}, "bos is missing: it must be text, since train_tokenizer.path is set"),
        ({"path": None}, "bos must be left out without train_tokenizer.path: a trained tokenizer has its own tokens"),
        ({"vocab_size": 300}, "vocab_size must be left out beside train_tokenizer.path: nothing is trained"),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, path, capsys, change, said):
    recipe = {"path": str(path), "bos": BOS, "eos": EOS, **change}
    recipe = {key: value for key, value in recipe.items() if value is not None}
    line = refused(capsys, train_tokenizer, recipe=recipe, output=tmp_path / "manifest.json")
    assert line.startswith(f"train_tokenizer: train_tokenizer.{said.format(path=path)}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda package: [], "path must be a tokenizer.json that tokenizers can read, got {path}: "),
        (lambda package: {"model": {}}, "path must be a tokenizer.json that tokenizers can read, got {path}: "),
        (
            lambda package: package["model"].update(dropout=0.1) or package,
            "path must have no dropout, which gives a text other ids each time, got {path}",
        ),
        (
            lambda package: {**package, "pre_tokenizer": None, "model": words(package)},
            f"path must give no text the special token '{BOS}': in {{path}} the text '{BOS}' becomes it",
        ),
        (  # bytes as letters, in one word
            lambda package: unknown_is(EOS, package | {"pre_tokenizer": package["pre_tokenizer"]["pretokenizers"][1]}),
            f"path must give no text the special token '{BOS}': in {{path}} the text '{BOS}' becomes it",
        ),
        (
            lambda package: package["model"]["vocab"].update(one=300, other=300) or package,
            "path must give each token an id of its own, and in {path} ",
        ),
        (
            lambda package: package["model"]["vocab"].update(far=1 << 31) or package,
            "path must have ids below 16,777,216, and in {path} 'far' has 2,147,483,648",
        ),
    ],
    ids=["list", "empty model", "dropout", "special", "one word", "one id twice", "far id"],
)
def test_a_file_that_cannot_serve_is_named(tmp_path, path, capsys, spoil, said):
    spoilt = custom_tokenizers.write_package(tmp_path / "spoilt.json", spoil(json.loads(path.read_bytes())))
    recipe = {"path": str(spoilt), "bos": BOS, "eos": EOS}
    line = refused(capsys, train_tokenizer, recipe=recipe, output=tmp_path / "made" / "manifest.json")
    assert line.startswith(f"train_tokenizer: train_tokenizer.{said.format(path=spoilt)}"), line


def test_a_text_on_which_the_regex_of_a_tokenizer_fails_is_named(tmp_path, path, capsys):
    split = {"type": "Split", "pattern": {"Regex": "(a+)+$"}, "behavior": "Isolated", "invert": False}
    package = json.loads(path.read_text()) | {"pre_tokenizer": split}
    tokenizer = taken(custom_tokenizers.write_package(tmp_path / "mine/tokenizer.json", package), tmp_path)
    source = lines_listed(tmp_path, [*texts("a", 9), "a" * 5000 + "!", "b"])
    line = refused(capsys, tokenize, list=source, tokenizer=tokenizer, part=0, output=tmp_path / "tokens.json")
    of_corpus = tokenizer.with_name("tokenizer.json")
    assert line.startswith(f"tokenize: {tmp_path / 'a.jsonl'}:10 cannot be encoded by the tokenizer {of_corpus}: chang")


@pytest.mark.parametrize("vocab_size", ["bytes as letters", "bytes to fall back to"])
def test_the_unknown_token_may_be_bos_and_eos_where_every_byte_is_known(tmp_path, path, vocab_size):
    package = unknown_is(EOS, json.loads(path.read_bytes()))
    if vocab_size == "bytes to fall back to":
        package |= {"pre_tokenizer": None, "model": {"type": "BPE", "merges": [], "byte_fallback": True}}
        package["model"] |= {"unk_token": EOS, "vocab": {EOS: 402, "a": 256} | byte_pieces()}
    recipe = {"path": str(custom_tokenizers.write_package(tmp_path / "mine.json", package)), "bos": EOS, "eos": EOS}
    ours = Tokenizer(make(train_tokenizer, recipe=recipe, output=tmp_path / "manifest.json"))
    for ids in ours.encode([*EDGE_CASES, EOS, f"a {EOS} \U000e0001"]):
        assert ours.eos not in ids.tolist()


@pytest.mark.parametrize("name", ["bos", "eos"])
@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda package: {**package, "pre_tokenizer": {"type": "Whitespace"}, "model": words(package)}, "'t'"),
        (lambda package: without_a_letter(package, "\u00f4"), r"'\U00100000'"),  # of the byte 0xf4
        (lambda package: {**package, "pre_tokenizer": None, "model": bytes_but_one(package)}, "'~'"),
    ],
    ids=["words", "a byte is no letter", "no byte to fall back to"],
)
def test_an_unknown_token_that_texts_have_is_neither_bos_nor_eos(tmp_path, path, capsys, name, spoil, text):
    """Of `hello strange world` the second word would end the document."""
    package = unknown_is(EOS, spoil(json.loads(path.read_bytes())))
    spoilt = custom_tokenizers.write_package(tmp_path / "spoilt.json", package)
    recipe = {"path": str(spoilt), "bos": BOS, "eos": "<|eot_id|>"} | {name: EOS}
    line = refused(capsys, train_tokenizer, recipe=recipe, output=tmp_path / "made" / "manifest.json")
    assert line == (
        f"train_tokenizer: train_tokenizer.{name} must be a token that no text becomes, got {EOS!r}, the "
        f"unknown token of {spoilt}: the text {text} becomes it"
    )


def unknown_is(piece, package):
    """The package, with a token for what it does not know that is one of the model's."""
    package["model"]["unk_token"] = piece
    for token in package["added_tokens"]:  # of a vocabulary with gaps, tokenizers would give the others new ids
        package["model"]["vocab"][token["content"]] = token["id"]
    return package


def without_a_letter(package, letter):
    """A package of byte-level BPE that lacks one of the 256 letters for bytes."""
    del package["model"]["vocab"][letter]
    assert not [merge for merge in package["model"]["merges"] if letter in "".join(merge)]
    return package


def byte_pieces():
    """The 256 pieces for bytes."""
    return {f"<0x{byte:02X}>": byte for byte in range(256)}


def bytes_but_one(package):
    """A model without letters, which falls back to all bytes but that of ~."""
    vocab = {name: number for name, number in byte_pieces().items() if name != "<0x7E>"}
    return {"type": "BPE", "merges": [], "byte_fallback": True, "vocab": vocab}


def words(package):
    """A model that knows whole words only, the special tokens among them."""
    special = {token["content"]: token["id"] for token in package["added_tokens"]}
    return {"type": "WordLevel", "unk_token": "the", "vocab": {"the": 0, "a": 1, **special}}


@pytest.fixture(scope="module")
def corpus(directory, path, ours):
    """A corpus by the tokenizer; the vocabulary fits uint16."""
    return made_corpus(directory, ours.manifest.path)


def made_corpus(directory, tokenizer):
    parts = []
    for name in SOURCES:
        entries = [*texts(name, 120), f"a text that says {EOS} and goes on"]
        parts += tokenized(directory, name, lines_listed(directory, entries, name, validation=0.2), tokenizer)
    return make(index, tokenizer=tokenizer, parts=parts, output=directory / "tokens" / "main" / "manifest.json")


def test_a_shard_holds_each_document_between_bos_and_eos(corpus, ours):
    made = Corpus(corpus)
    described = {"digest": ours.digest, "vocab_size": 403, "bos": ours.bos, "eos": ours.eos, "bos_added": True}
    assert made.tokenizer == described
    stream = made.stream("a")
    ids = stream.read(0, len(stream))
    assert made.manifest.identity["dtype"] == "uint16"
    num_documents = made.manifest.identity["sources"]["a"]["train"]["documents"]
    assert (ids == ours.bos).sum() == (ids == ours.eos).sum() == num_documents


def test_a_vocabulary_over_65536_gives_shards_of_32_bits(tmp_path):
    path = custom_tokenizers.write(tmp_path / "tokenizer.json", unused=66_000)
    made = Corpus(made_corpus(tmp_path, taken(path, tmp_path)))
    stream = made.stream("a")
    assert made.manifest.identity["dtype"] == "uint32"
    assert made.tokenizer["bos"] > 65_536
    assert stream.read(0, 1).tolist() == [made.tokenizer["bos"]]


def test_it_is_trained_on_exported_scored_and_generates(corpus, directory, ours, capsys):
    results = directory / "runs" / "base"
    assert training.train(corpus, results, 4, steps=4) == 0
    model, export = results / "models" / "00000004.json", results / "export" / "00000004" / "manifest.json"
    given = {"corpus": corpus, "output": export, "model": model, "tokenizer": ours.manifest.path}
    make(convert, **given, recipe={"dtype": "float32"})
    report = json.loads(export.with_name("parity.json").read_text())
    assert report["passed"] and report["tokenizer"]["a"]["texts"] > 10
    assert not export.with_name("tokenizer.model").exists()
    recipe = {"tasks": ["bits_per_byte"], "bytes_per_source": 2000, "batch_size": 4}
    scores = make(evaluate, export=export, corpus=corpus, recipe=recipe, output=results / "eval" / "validation.json")
    bits = manifest.read(scores).identity["results"]["bits_per_byte_a"]["bits_per_byte"]["value"]
    assert 0 < bits < 9
    said = []
    for place in (model, export):
        capsys.readouterr()
        arguments = ["--model", str(place), "--prompt", f"ka {EOS}", "--temperature", "0", "--tokens", "9"]
        assert generate.main(arguments) == 0
        said.append(capsys.readouterr().out)
    assert said[0] == said[1]
    assert said[0].startswith(f"ka {EOS}")
