"""Fill-in-the-middle through the stages: the tokenizer, the training, its ledger, the export, and mistakes."""

import json
import shutil

import numpy as np
import pytest

from stages import convert, pretrain, train_tokenizer
from stages.lib import manifest
from stages.lib.parity import tokenizer_parity
from stages.lib.parity.parity import ParityError
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import ledger
from stages.lib.tokens.corpus import Corpus
from tests.helpers import custom_tokenizers
from tests.helpers.custom_tokenizers import BOS, EOS
from tests.helpers.data_fixtures import lines_listed, make, refused, texts, tiny_corpus, trained
from tests.helpers.training import (
    RECIPE,
    before_each_step,
    check_two_ranks,
    milestone,
    options,
    run_directory,
    steps_of,
    train,
    weights_of,
)
from tests.helpers.training import refused as train_refused
from tools import replay_ledger
from tools.inspect import __main__ as inspect

IDS = {"prefix": 3, "middle": 4, "suffix": 5}
NAMES = [f"<|fim_{name}|>" for name in IDS]
PERMUTED = RECIPE | {"fill_in_the_middle": {"rate": 0.8, "sources": ["a"]}}
HOSTILE = ["{0}", "a{0}b {1}\n{2}", " {0} <s>{1}</s>", "<{0}>", "{0}{0}{0}", "<|fim_|> <|fim_prefix |>"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """A corpus whose tokenizer has the special tokens."""
    recipe = {"vocab_size": 323, "fill_in_the_middle": {}}
    return tiny_corpus(tmp_path_factory.mktemp("results"), tokenizer_recipe=recipe)


def tokenizer_of(corpus):
    return corpus.parents[2] / "tokenizers/main/manifest.json"


@pytest.fixture(scope="module")
def uncut(corpus):
    """A run of 20 steps, and its milestone."""
    run = corpus.parents[2] / "uncut"
    assert train(corpus, run, 20, recipe=PERMUTED, steps=20) == 0
    return run


@pytest.mark.parametrize("model", ["bpe", "unigram"])
@pytest.mark.parametrize("names", [{}, {"prefix": "<fim-prefix>", "middle": "<M>", "suffix": "<._*+]>"}])
def test_no_text_becomes_a_special_token_in_any_library(tmp_path, model, names):
    pieces = [*({"prefix": NAMES[0], "middle": NAMES[1], "suffix": NAMES[2]} | names).values()]
    hostile = [text.format(*pieces) for text in HOSTILE]
    source = lines_listed(tmp_path, texts("a", 40) + hostile * 20, validation=0)
    path = trained(tmp_path, [source], vocab_size=340, sample={"a": 1}, model=model, fill_in_the_middle=names)
    ours = Tokenizer(path)
    assert ours.fill_in_the_middle == IDS and ours.vocab_size == 340
    theirs = tokenizer_parity.load_tokenizer(path.parent)
    for text in hostile:
        (ids,) = ours.encode([text])
        assert theirs.encode(text, add_special_tokens=False) == ids.tolist()
        assert not {*IDS.values()} & {*ids.tolist()}
        assert ours.decode(ids) == text
    prompt = "{0}a{2}b{1}".format(*pieces)
    assert [id_ for id_ in theirs.encode(prompt, split_special_tokens=False) if id_ in IDS.values()] == [3, 5, 4]
    assert not ours.bytes_of_ids()[3:6].any()


def test_a_tokenizer_without_the_key_is_the_one_of_before(tmp_path):
    corpus = tiny_corpus(tmp_path, documents=60)
    identity = manifest.read(tokenizer_of(corpus), "train_tokenizer").identity
    assert "fill_in_the_middle" not in identity and "fill_in_the_middle" not in Corpus(corpus).tokenizer
    assert Tokenizer(tokenizer_of(corpus)).special_texts() == ["<unk>", "<s>", "</s>"]


@pytest.mark.parametrize(
    "names", [["<fim_prefix>", "<fim_middle>", "<fim_suffix>"], ["\u2581<PRE>", "\u2581<MID>", "\u2581<SUF>"]]
)
def test_a_custom_tokenizer_names_its_own_tokens(tmp_path, names):
    package = json.loads(custom_tokenizers.write(tmp_path / "plain.json").read_bytes())
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    package["added_tokens"] += [
        {"id": 403 + number, "content": name, **flags, "special": number > 0} for number, name in enumerate(names)
    ]
    path = custom_tokenizers.write_package(tmp_path / "tokenizer.json", package)
    recipe = {"path": str(path), "bos": BOS, "eos": EOS, "fill_in_the_middle": dict(zip(IDS, names, strict=True))}
    output = make(train_tokenizer, recipe=recipe, output=tmp_path / "made" / "manifest.json")
    ours, theirs = Tokenizer(output), tokenizer_parity.load_tokenizer(output.parent)
    assert ours.fill_in_the_middle == {"prefix": 403, "middle": 404, "suffix": 405}
    assert theirs.encode("a" + "b".join(names), split_special_tokens=False)[2::2] == [403, 404, 405]
    (ids,) = ours.encode(["a" + "b".join(names)])
    assert max(ids) < 400 and theirs.encode("a" + "b".join(names))[1:] == ids.tolist()
    assert manifest.read(output).identity["recipe"] == {key: recipe[key] for key in recipe if key != "path"}


def test_ledger_gives_the_tokens_that_were_trained_on_and_a_cut_changes_no_bit(corpus, uncut, tmp_path, monkeypatch):
    trained_on = {}
    before_each_step(monkeypatch, lambda step, *batch: trained_on.update({step + 1: [*map(np.ndarray.tolist, batch)]}))
    for until in (7, 20):
        assert train(corpus, tmp_path, until, recipe=PERMUTED, steps=20) == 0
    assert weights_of(tmp_path, 20) == weights_of(uncut, 20)
    directory = run_directory(tmp_path)
    samples = ledger.samples_of(corpus, ledger.commit_of(directory), directory)
    permuted = []
    for entry in steps_of(tmp_path):
        numbers = np.arange(*entry["samples"])
        inputs, targets = samples.batch(numbers)
        assert trained_on[entry["step"]] == [inputs.tolist(), targets.tolist()]
        permuted += zip(samples.locate(numbers)[0].tolist(), (inputs == IDS["middle"]).sum(axis=1), strict=True)
    assert len(steps_of(tmp_path)) == 20
    assert sum(count for source, count in permuted if source == 0) > 100
    assert not any(count for source, count in permuted if source == 1)


def test_inspect_shows_a_sample_as_it_was_trained_on(corpus, uncut, capsys):
    directory = run_directory(uncut)
    samples, tokenizer = ledger.samples_of(corpus, ledger.commit_of(directory), directory), tokenizer_of(corpus)
    capsys.readouterr()
    options = ["--corpus", corpus, "--tokenizer", tokenizer, "--run", directory, "--step", 1, "--samples", 12]
    assert inspect.main([*map(str, options)]) == 0
    shown = capsys.readouterr().out.split("\nsample ")[1:]
    marks = {IDS[name]: f"  +-- {name}" for name in IDS} | {2: "  +-- end of the document"}
    for text, ids in zip(shown, samples.read(np.arange(12)).tolist(), strict=True):
        lines = text.splitlines()[1:]
        assert [line for line in lines if not line.startswith("  | ")] == [marks[i] for i in ids if i in marks]
        middle = "\n".join(lines).partition("  +-- middle\n")[2].split("\n  +-- ")[0]
        if middle.startswith("  | "):
            begin = ids.index(IDS["middle"]) + 1
            end = next((at for at in range(begin, len(ids)) if ids[at] in marks), len(ids))
            assert middle.replace("  | ", "") == Tokenizer(tokenizer).decode(ids[begin:end])
    assert sum("  +-- middle\n" in text for text in shown) > 2


@pytest.mark.long
def test_two_ranks_train_on_what_one_does(corpus, tmp_path):
    check_two_ranks(corpus, tmp_path, PERMUTED)


def test_a_run_may_begin_or_end_it_while_it_continues_the_data(corpus, uncut, tmp_path, capsys):
    keep = {"optimizer": "keep", "schedule": "continue", "data": "continue"}
    recipe = RECIPE | {"initial": keep, "fill_in_the_middle": {"rate": 0.2, "spm_rate": 0}}
    given = options(corpus, tmp_path, 10, recipe=recipe, steps=10)
    assert pretrain.main([*given, "--initial", str(milestone(uncut, 20))]) == 0
    capsys.readouterr()
    runs = [str(run_directory(uncut)), str(run_directory(tmp_path))]
    assert replay_ledger.main(["--corpus", str(corpus), "--run", *runs]) == 0
    said = capsys.readouterr().out
    assert "fill_in_the_middle permuted 20% of the fragments of a, b, each without its last 3 tokens\n" in said
    assert said.endswith("the ledger agrees with corpus and recipe: no sample lost, none twice\n")
    assert steps_of(tmp_path)[0]["samples"][0] == 240


def test_the_export_has_the_tokens_or_is_refused(corpus, uncut, tmp_path):
    output = tmp_path / "export" / "manifest.json"
    given = {"corpus": corpus, "model": milestone(uncut, 20), "tokenizer": tokenizer_of(corpus)}
    make(convert, **given, output=output, recipe={"dtype": "float32"})
    assert json.loads(output.with_name("parity.json").read_text())["passed"]
    path = output.with_name("tokenizer.json")
    package = json.loads(path.read_text())
    assert [token["content"] for token in package["added_tokens"]] == ["<unk>", "<s>", "</s>", *NAMES]
    for spoil in ("no token", "not special"):
        shutil.copytree(output.parent, tmp_path / spoil)
        spoilt = json.loads(path.read_text())
        if spoil == "no token":
            spoilt["added_tokens"].pop()
        else:
            spoilt["added_tokens"][-1]["special"] = False
        (tmp_path / spoil / "tokenizer.json").write_text(json.dumps(spoilt))
        exported = tokenizer_parity.load_tokenizer(tmp_path / spoil, split_special_tokens=True)
        with pytest.raises(ParityError, match="the export must have the special token 5, that of suffix in fill-in"):
            tokenizer_parity.compare_special_tokens(exported, Corpus(corpus).tokenizer)


def test_a_mistake_of_a_training_is_one_sentence(corpus, tmp_path, capsys):
    plain = tiny_corpus(tmp_path / "plain", documents=60)
    for of_corpus, keys, said in (
        (corpus, {"sources": ["c"]}, ".sources must name sources of the run's weights (a, b), got 'c'"),
        (plain, {}, " requires a tokenizer with the special tokens of fill-in-the-middle"),
    ):
        line = train_refused(capsys, of_corpus, tmp_path, recipe=RECIPE | {"fill_in_the_middle": keys})
        assert line.startswith(f"pretrain: pretrain.fill_in_the_middle{said}")
    line = train_refused(capsys, corpus, tmp_path, recipe=RECIPE | {"fill_in_the_middle": {}, "seq_len": 8})
    assert "fill_in_the_middle requires a seq_len of at least 16, since it permutes no shorter" in line


TRAINED = {"vocab_size": 300, "sample": {"a": 1}}


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        (TRAINED | {"fill_in_the_middle": {"prefix": "a b"}}, ".prefix must be a name of printable ASCII in angle"),
        (TRAINED | {"fill_in_the_middle": {"suffix": "</s>"}}, ".suffix must be a name of printable ASCII in angle"),
        (TRAINED | {"fill_in_the_middle": {"middle": "<0x0A>"}}, ".middle must be a name of printable ASCII in angle"),
        (
            TRAINED | {"fill_in_the_middle": {"prefix": "<M>", "middle": "<M>"}},
            ".prefix must differ from the other two",
        ),
        ({"fill_in_the_middle": {}}, ".prefix must be a token of {path}, got '<|fim_prefix|>'"),
        ({"fill_in_the_middle": {"prefix": EOS}}, f".prefix must differ from bos and eos, got {EOS!r}"),
    ],
)
def test_a_mistake_of_a_tokenizer_is_one_sentence(tmp_path, capsys, recipe, said):
    path = custom_tokenizers.write(tmp_path / "tokenizer.json")
    if "sample" not in recipe:
        recipe = recipe | {"path": str(path), "bos": BOS, "eos": EOS}
    line = refused(capsys, train_tokenizer, recipe=recipe, output=tmp_path / "made" / "manifest.json")
    assert line.startswith(f"train_tokenizer: train_tokenizer.fill_in_the_middle{said.format(path=path)}"), line
