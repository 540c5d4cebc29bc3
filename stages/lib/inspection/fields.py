"""The fields of a source's records: their types, how many records have them, and a value of each."""

import itertools
from collections import Counter
from dataclasses import dataclass, field

from stages.lib.inspection import terminal
from stages.lib.inspection.terminal import several
from stages.lib.sources import records, tables

RECORDS = 200  # of each place
VALUE = 60  # characters of an example
USES = ("text_field", "token_ids_field", "id_field", "split_field", "prompt_field", "completion_field")
NAMES = {str: "text", bool: "true or false", int: "whole number", float: "number", dict: "mapping", type(None): "null"}


@dataclass
class Field:
    """A field as it was found: `types` counts the records by what they hold there; `characters` of text in all."""

    types: Counter = field(default_factory=Counter)
    example: object = None
    characters: int = 0

    def add(self, value):
        """Count the value of one record; the first that is not empty becomes the example."""
        self.types[_type_of(value)] += 1
        if isinstance(value, str):
            self.characters += len(value)
        if self.example in (None, "", [], {}):
            self.example = value


def _type_of(value):
    if isinstance(value, list):
        return f"list of {NAMES.get(type(value[0]), 'lists')}s" if value else "list"
    return NAMES[type(value)]


def print_fields(recipe, places, files):
    """Print the fields of the records of a source; of a table those that the file says it has.

    Raises UserError where a file cannot be read.
    """
    if recipe.kind in ("jsonl", "prompt_completion"):
        _print_of_lines(recipe, places)
    elif recipe.kind in ("parquet", "arrow"):
        _print_of_table(recipe, files[0]["name"])


def _print_of_lines(recipe, places):
    found, looked_at = {}, 0
    for place in places:
        lines = (record for span in place.spans for _, record in records.lines(recipe, span))
        for record in itertools.islice(lines, RECORDS):
            if isinstance(record, dict) and record:
                looked_at += 1
                for name, value in record.items():
                    found.setdefault(name, Field()).add(value)
    if not found:
        print("\nfields: none, since no line that was looked at holds a JSON object")
        return
    print(f"\nfields of {several(looked_at, 'record')}")
    rows = [
        (terminal.shortened(name, VALUE), _types(seen), terminal.share(seen.types.total(), looked_at))
        + (_use(recipe, name), _value(seen.example))
        for name, seen in found.items()
    ]
    _print_table([("name", "type", "records", "read as", "example"), *rows])
    wanted = recipe.prompt_field if recipe.kind == "prompt_completion" else recipe.text_field
    texts = {name: seen.characters for name, seen in found.items() if seen.characters}
    if wanted not in found and texts:
        longest = terminal.shortened(max(texts, key=texts.get), VALUE)
        print(f"  no record has the field {wanted}; the most text stands in {longest}")


def _print_of_table(recipe, name):
    schema, row = tables.schema(recipe, name)
    print(f"\ncolumns of {terminal.visible(name)}")
    rows = [
        (terminal.shortened(column.name, VALUE), str(column.type), _use(recipe, column.name), _value(value))
        for column, value in zip(schema, row or [None] * len(schema), strict=True)
    ]
    _print_table([("name", "type", "read as", "example"), *rows])


def _print_table(rows):
    for line in terminal.table(rows):
        print(f"  {line}")


def _types(seen):
    if len(seen.types) == 1:
        return next(iter(seen.types))
    return ", ".join(f"{name} ({count:,})" for name, count in seen.types.items())


def _use(recipe, name):
    """Which fields of the recipe name it, where its kind reads them."""
    fields = USES[4:] if recipe.kind == "prompt_completion" else USES[:4]
    if recipe.kind == "jsonl" or recipe.token_ids_field is not None:
        fields = [use for use in fields if use != ("token_ids_field" if recipe.kind == "jsonl" else "text_field")]
    if recipe.kind == "prompt_completion":
        fields = [*fields, "split_field"]
    return ", ".join(use for use in fields if getattr(recipe, use) == name)


def _value(value):
    if value is None:
        return "null"
    if hasattr(value, "dtype"):
        value = value[:VALUE].tolist()
    if hasattr(value, "to_string"):  # what Python cannot hold, as Arrow writes it
        value = " ".join(value.to_string().split()).strip("[ ]")
    return terminal.shortened(value if isinstance(value, str) else repr(value), VALUE)
