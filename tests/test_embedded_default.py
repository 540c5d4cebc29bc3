"""The embedded default's text, the Python installation, through the real stages: its validation split and ids."""

import ast
import inspect
import json
import warnings

import pytest

from stages import index
from stages.lib.sources.kinds import python_kinds
from stages.lib.tokens.corpus import Corpus
from tests.helpers.data_fixtures import listed, make, tokenized, trained

SOURCES = ("code", "prose")

pytestmark = pytest.mark.long  # all text of the Python installation


@pytest.fixture(scope="module")
def box(tmp_path_factory):
    """A directory with the lists, a tokenizer of 4,096 ids and the corpus, with 15% of the modules for validation."""
    directory = tmp_path_factory.mktemp("box")
    lists = {name: listed(directory, name, {"kind": f"python-{name}", "validation": 0.15}) for name in SOURCES}
    sample = dict.fromkeys(SOURCES, 1)
    tokenizer = trained(directory, [*lists.values()], vocab_size=4096, sample=sample, sample_mb=2)
    parts = [part for name in SOURCES for part in tokenized(directory, name, lists[name], tokenizer)]
    make(index, tokenizer=tokenizer, parts=parts, output=directory / "tokens" / "main" / "manifest.json")
    return directory


@pytest.fixture(scope="module")
def validation(box):
    """{source: {id: text}} of the validation split."""
    return {name: _texts(box / "tokens" / "main" / name / "00000" / "validation.jsonl") for name in SOURCES}


@pytest.fixture(scope="module")
def processor(box):
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(box / "tokenizers" / "main" / "tokenizer.model"))


def _texts(path):
    with open(path, encoding="utf-8", newline="\n") as lines:
        return {entry["id"]: entry["text"] for entry in map(json.loads, lines)}


def _normalised(text):
    return " ".join(text.split())


def _docstrings(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tree = ast.parse((python_kinds.root() / name).read_bytes())
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node, clean=False) for node in ast.walk(tree) if isinstance(node, kinds))
    return {inspect.cleandoc(text) for text in found if text}


def test_validation_split_has_at_least_200_kB_of_each_source(validation):
    for name in SOURCES:
        assert sum(len(text.encode()) for text in validation[name].values()) >= 200_000


def test_a_module_is_in_the_same_split_in_both_sources(box):
    validation_files = {}
    for name in SOURCES:
        files = {
            file["name"] for file in json.loads((box / "sources" / name / "list.json").read_text())["identity"]["files"]
        }
        validation = _texts(box / "tokens" / "main" / name / "00000" / "validation.jsonl").keys()
        validation_files[name] = {file for file in files if file in validation}
    with_prose = {name for name in validation_files["code"] if _docstrings(name)}
    assert validation_files["prose"] <= validation_files["code"]
    assert len(validation_files["prose"]) > len(with_prose) / 2  # so the assertion above does not hold of an empty set


def test_no_validation_docstring_is_in_training_text(box, validation, processor):
    corpus = Corpus(box / "tokens" / "main" / "manifest.json")
    streams = [corpus.stream(name) for name in SOURCES]
    training = _normalised("\n".join(processor.decode(s.read(0, len(s)).tolist()) for s in streams))
    docstrings = set()
    for name, text in validation["prose"].items():
        docstrings |= {found for found in _docstrings(name) if found in text} if name.endswith(".py") else {text}
    docstrings = {_normalised(text) for text in docstrings if len(text.split()) >= python_kinds.WORDS}
    assert len(docstrings) > 500
    assert [text for text in docstrings if text in training] == []


def test_transformers_gives_the_same_ids_on_the_whole_validation_split(box, validation, processor):
    from transformers import AutoTokenizer

    package = AutoTokenizer.from_pretrained(box / "tokenizers" / "main")
    texts = [text for name in SOURCES for text in validation[name].values()]
    theirs = package(texts, add_special_tokens=False)["input_ids"]
    assert theirs == processor.encode(texts)
    corpus = Corpus(box / "tokens" / "main" / "manifest.json")
    stored = [corpus.stream(name, "validation") for name in SOURCES]
    assert [id for ids in theirs for id in [1, *ids, 2]] == [id for s in stored for id in s.read(0, len(s)).tolist()]
