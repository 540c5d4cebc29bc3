"""The fields of a source's records: their types, how many records have them, and a value of each."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from stages.lib.render.numbers import several
from stages.lib.render.table import Table
from stages.lib.sources import storage
from stages.lib.sources.kinds import lines
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.kinds.tables import PARQUET
from tools.inspect import terminal

if TYPE_CHECKING:
    from stages.lib.sources.source import SourceRecipe
    from tools.inspect.sampling import Place

RECORDS = 200  # of each place
VALUE = 60  # characters of an example
NAMING_FIELDS = (
    *("text_field", "token_ids_field", "id_field", "messages_field", "split_field"),
    *("prompt_field", "completion_field", "chosen_field", "rejected_field"),
)
"""Fields of the recipe that name a field or a column."""

NAMES = {str: "text", bool: "true or false", int: "whole number", float: "number", dict: "mapping", type(None): "null"}


@dataclass
class Field:
    """A field of the records: `types` counts the records by the type of its value, `characters` those of text."""

    types: Counter[str] = field(default_factory=Counter)
    example: object = None
    characters: int = 0

    def add(self, value: object) -> None:
        """Count the value of one record; the first value that is not empty becomes the example."""
        name = NAMES.get(type(value), "list")
        if isinstance(value, list) and value:
            name = f"list of {NAMES.get(type(value[0]), 'lists')}s"
        self.types[name] += 1
        if isinstance(value, str):
            self.characters += len(value)
        if self.example in (None, "", [], {}):
            self.example = value


def print_fields(recipe: SourceRecipe, places: Sequence[Place], files: Sequence[Mapping[str, Any]]) -> None:
    """Print the fields of the records of a source; of a table the columns of its first file.

    Raises UserError if a file cannot be read.
    """
    kind = kind_of(recipe)
    name = files[0]["name"] if files else ""
    if kind.has_columns or (kind.has_json_lines and storage.without_query(name).endswith(PARQUET.endings)):
        schema, row = kind.schema(name)
        print(f"\ncolumns of {terminal.visible(name)}")
        rows = [
            (terminal.shortened(column.name, VALUE), str(column.type), _use(recipe, column.name), _value(value))
            for column, value in zip(schema, row or [None] * len(schema), strict=True)
        ]
        print(*Table(titles=("name", "type", "read as", "example"), rows=rows).text(), sep="\n")
    elif kind.has_json_lines:
        _print_of_lines(recipe, places)


def _print_of_lines(recipe: SourceRecipe, places: Sequence[Place]) -> None:
    fields: dict[str, Field] = {}
    num_records = 0
    for place in places:
        records = (record for span in place.spans for _, record in lines.records(span))
        for record in itertools.islice(records, RECORDS):
            if isinstance(record, dict) and record:
                num_records += 1
                for name, value in record.items():
                    fields.setdefault(name, Field()).add(value)
    if not fields:
        print("\nfields: none, since no line of the sample holds a JSON object")
        return
    print(f"\nfields of {several(num_records, 'record')}")
    rows = []
    for name, seen in fields.items():
        types = [f"{type_} ({count:,})" if len(seen.types) > 1 else type_ for type_, count in seen.types.items()]
        share = terminal.share(seen.types.total(), num_records)
        rows.append(
            (terminal.shortened(name, VALUE), ", ".join(types), share, _use(recipe, name), _value(seen.example))
        )
    titles = ("name", "type", "records", "read as", "example")
    print(*Table(titles=titles, rows=rows, numeric=range(2, 3)).text(), sep="\n")
    kind = kind_of(recipe)
    expected = recipe.text_field if kind.has_documents else recipe.prompt_field
    expected = recipe.messages_field if "conversations" in kind.yields else expected
    texts = {name: seen.characters for name, seen in fields.items() if seen.characters}
    if expected not in fields and expected.partition(".")[0] not in fields and texts:
        longest = terminal.shortened(max(texts, key=lambda name: texts[name]), VALUE)
        print(f"  no record has the field {expected}; the field with the most text is {longest}")


def _use(recipe: SourceRecipe, name: str) -> str:
    """Return the fields of the recipe that name a field of the records, as far as the source's kind reads them."""
    fields = [field for field in NAMING_FIELDS if field in kind_of(recipe).fields]
    if recipe.token_ids_field is not None:
        fields.remove("text_field")
    read = {field: getattr(recipe, field) or "" for field in fields}
    inside = [f"{field} ({path})" for field, path in read.items() if path.startswith(f"{name}.")]
    return ", ".join([*(field for field, path in read.items() if path == name), *inside])


def _value(value: Any) -> str:
    if value is None:
        return "null"
    if hasattr(value, "dtype"):
        value = value[:VALUE].tolist()
    if hasattr(value, "to_string"):  # an Arrow value that Python cannot hold
        value = " ".join(value.to_string().split()).strip("[ ]")
    return terminal.shortened(value if isinstance(value, str) else repr(value), VALUE)
