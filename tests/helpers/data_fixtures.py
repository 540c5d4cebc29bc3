"""A tiny corpus, made by the real stages: sources `a` and `b` of generated text in jsonl."""

import json
import random

import pyarrow as pa
from pyarrow import parquet

from stages import index, tokenize, train_tokenizer
from stages import list as listing
from stages.lib.sources import documents, spans
from stages.lib.sources.source import SourceRecipe
from tests.helpers.manifests import shards_of

SYLLABLES = ("ka", "ra", "van", "to", "ken", "mi", "lo", "ste", "p", "un", "der", "ol", "i", "sche", "ba")
SOURCES = ("a", "b")


def texts(name, documents):
    """Texts of 1 to 160 words; `name` seeds the words, so that sources differ."""
    chance = random.Random(name)
    words = ["".join(chance.choices(SYLLABLES, k=chance.randint(1, 3))) for _ in range(80)]
    made = []
    for _ in range(documents):
        line = chance.choices(words, k=chance.randint(1, 160))
        made.append("".join(word + chance.choice(["", " ", " ", " ", ", ", "\n"]) for word in line))
    return made


def write_jsonl(path, entries):
    """Write one JSON object per line; return the path as text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries), encoding="utf-8")
    return str(path)


def entries_of(path, kind, **recipe):
    """The documents, malformed and filtered records of a source of one file, in their order."""
    made = SourceRecipe(kind=kind, paths=["*"], **recipe)
    return list(documents.read(made, spans.whole([str(path)]), [str(path)]))


def parquet_of(rows, **options):
    """The bytes of a parquet file of some rows."""
    sink = pa.BufferOutputStream()
    parquet.write_table(pa.Table.from_pylist(rows), sink, **options)
    return sink.getvalue().to_pybytes()


def run(stage, **options):
    """Call a stage's `main` with keyword options, dicts as JSON and lists as several values; return its exit code."""
    arguments = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        arguments.append(f"--{name.replace('_', '-')}")
        arguments += [json.dumps(value) if isinstance(value, dict) else str(value) for value in values]
    return stage.main(arguments)


def make(stage, **options):
    """As `run`, for a stage that must succeed; return the path of the manifest."""
    code = run(stage, **options)
    assert code == 0, f"{stage.__name__} ended with {code}"
    return options["output"]


def listed(directory, name, source_recipe):
    """The list of a source below `directory`."""
    return make(listing, name=name, recipe=source_recipe, output=directory / "sources" / name / "list.json")


def lines_listed(directory, entries, name="a", **recipe):
    """The list of a source of one file, directory/NAME.jsonl; a text among the entries is {"text": text}."""
    path = write_jsonl(
        directory / f"{name}.jsonl", [{"text": entry} if isinstance(entry, str) else entry for entry in entries]
    )
    return listed(directory, name, {"kind": "jsonl", "paths": [path]} | recipe)


def trained(directory, lists, **tokenizer_recipe):
    """A tokenizer below `directory`."""
    output = directory / "tokenizers" / "main" / "manifest.json"
    return make(train_tokenizer, lists=lists, recipe=tokenizer_recipe, output=output)


def tokenized(directory, name, source_list, tokenizer, **tokenize_recipe):
    """All parts of a source below `directory`."""
    return [
        make(
            tokenize,
            list=source_list,
            tokenizer=tokenizer,
            part=part,
            recipe=tokenize_recipe,
            output=directory / "tokens" / "main" / name / f"{part:05d}.json",
        )
        for part in range(tokenize_recipe.get("parts", 1))
    ]


def small_tokenizer(directory):
    """A tokenizer of 320 ids below `directory`, trained on generated text."""
    source = lines_listed(directory, texts("a", 40), validation=0)
    return trained(directory, [source], vocab_size=320, sample={"a": 1})


def in_plain_lines(directory, entries, **source_recipe):
    """Return (tokenizer, bytes of the shards) of entries in a JSON lines file; other formats must give the same."""
    source = lines_listed(directory, entries, **source_recipe)
    tokenizer = trained(directory, [source], vocab_size=320, sample={"a": 1})
    (part,) = tokenized(directory, "a", source, tokenizer)
    return tokenizer, shards_of(part)


def part_of(directory, tokenizer, **recipe):
    """The manifest of the one part of a source below `directory`, with a validation share of a fifth."""
    (part,) = tokenized(directory, "a", listed(directory, "a", {"validation": 0.2} | recipe), tokenizer)
    return part


def of_parts(stage, directory, lists, num_parts=1, **options):
    """Make all parts of some sources below `directory`; return the manifests, source after source."""
    return [
        make(stage, list=source, part=part, **options, output=directory / source.parent.name / f"{part:05d}.json")
        for source in lists
        for part in range(num_parts)
    ]


def corpus_of(directory, entries, tokenizer_recipe, validation=0.15, **tokenize_recipe):
    """Make a corpus of {source: entries of a JSON lines file} below `directory`; return the path of its manifest.

    The tokenizer is directory/tokenizers/main/manifest.json.
    """
    lists = {name: lines_listed(directory, lines, name, validation=validation) for name, lines in entries.items()}
    recipe = {"sample": dict.fromkeys(entries, 1), "sample_mb": 0.1, **tokenizer_recipe}
    tokenizer = trained(directory, [*lists.values()], **recipe)
    parts = [part for name in entries for part in tokenized(directory, name, lists[name], tokenizer, **tokenize_recipe)]
    return make(index, tokenizer=tokenizer, parts=parts, output=directory / "tokens" / "main" / "manifest.json")


def tiny_corpus(directory, *, documents=200, vocab_size=320, validation=0.15, tokenizer_recipe=None, **tokenize_recipe):
    """Make a corpus of about 40,000 tokens per source below `directory` (two seconds), as `corpus_of` does."""
    entries = {name: texts(name, documents) for name in SOURCES}
    recipe = {"vocab_size": vocab_size, **(tokenizer_recipe or {})}
    return corpus_of(directory, entries, recipe, validation, **tokenize_recipe)


def refused(capsys, stage, **options):
    """Call a stage that must refuse: exit code 2, one line, no output. Returns the line."""
    capsys.readouterr()
    existed = options["output"].exists()
    assert run(stage, **options) == 2
    assert options["output"].exists() == existed
    lines = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(lines)
    return lines[-1]
