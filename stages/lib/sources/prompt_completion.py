"""Pairs of a prompt and a completion, to fine-tune on and to ask for: the sources that stages.list lists for it."""

import codecs
from collections import defaultdict
from dataclasses import dataclass

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources import compressed, inputs, python_docstrings, source, spans
from stages.lib.sources.split import TRAIN, VALIDATION, split_of


@dataclass(frozen=True)
class Pair:
    """A prompt and its completion: an id that is unique in its source, and the side of the split that it is on."""

    id: str
    prompt: str
    completion: str
    split: str


@dataclass(frozen=True)
class PairSource:
    """The pairs of a source: `train` and `validation`, lists of Pair in the order of the files.

    `digest` names what they were read from: the source's recipe, and names and contents of its files.
    """

    name: str
    digest: str
    train: list
    validation: list


def read(path):
    """The PairSource of a list (the manifest of stages.list).

    Raises UserError where the source is one of text, a file is not as it was listed, or a record is no pair.
    """
    listed, name, recipe = source.read_list(path)
    written = listed.identity["recipe"]
    if recipe.kind not in source.PROMPT_COMPLETION_KINDS:
        expected = " or ".join(source.PROMPT_COMPLETION_KINDS)
        raise UserError(f"sources.{name}.kind must be {expected} where pairs are read, got {recipe.kind}")
    chosen = spans.whole(file["name"] for file in listed.identity["files"])
    before = inputs.states(recipe, listed, chosen)
    described = inputs.described(recipe, listed, chosen)
    sides = defaultdict(list)
    for pair in records(recipe, [file["name"] for file in described]):
        sides[pair.split].append(pair)
    inputs.check_unchanged(before)
    logger.info("source %s: %s training pairs, %s held out", name, len(sides[TRAIN]), len(sides[VALIDATION]))
    digest = manifest.digest_of({"source": name, "recipe": written, "inputs": described})
    return PairSource(name, digest, sides[TRAIN], sides[VALIDATION])


def records(recipe, names):
    """Yield a Pair for each record of the files `names`, all files of the source.

    Raises UserError naming file and line of a record that is none: a model must not be trained on half of what is
    meant.
    """
    if recipe.kind == "python-docstrings":
        found = python_docstrings.pairs(names, names)
    else:
        found = (record for name in names for record in _lines(recipe, name))
    for identifier, key, prompt, completion in found:
        yield Pair(identifier, prompt, completion, split_of(key, recipe.validation))


def _lines(recipe, name):
    """(id, split key, prompt, completion) of each line that is not blank."""
    import orjson

    with compressed.opened(name) as file:
        for number, line in enumerate(file, 1):
            text = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if not text.strip():
                continue
            where = f"{name}, line {number}"
            try:
                entry = orjson.loads(text)
            except orjson.JSONDecodeError as error:  # a lone surrogate and invalid UTF-8 as well
                raise UserError(f"{where} must be a JSON object: {error}") from None
            prompt = _text(entry, recipe.prompt_field, where)
            completion = _text(entry, recipe.completion_field, where)
            key = prompt if recipe.split_field is None else _key(entry, recipe.split_field, where)
            yield f"{name}:{number}", key, prompt, completion


def _text(entry, field, where):
    if not isinstance(entry, dict):
        raise UserError(f"{where} must be a JSON object with the field {field}, got {entry!r:.60}")
    if field not in entry:
        known = ", ".join(map(str, entry)) or "none"
        raise UserError(f"{where} must have the field {field}, and has {known:.100}")
    text = entry[field]
    if not isinstance(text, str) or not text.strip():
        raise UserError(f"{where} must have text in the field {field}, got {text!r:.60}")
    return text


def _key(entry, field, where):
    value = entry.get(field)
    if not isinstance(value, (str, int)):  # null as well: it would bring all such records to one side
        raise UserError(f"{where} must have text or a whole number in the field {field}, got {value!r:.60}")
    return str(value)
