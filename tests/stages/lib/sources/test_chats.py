"""The conversations of a source: JSON lines and parquet, the split, filters, and malformed records by file and line."""

import json

import pyarrow as pa
import pytest
from pyarrow import parquet

from stages.lib.errors import UserError
from stages.lib.sources import examples
from tests.helpers.data_fixtures import lines_listed, listed


def chat(number, **more):
    turns = [("system", "Be brief."), ("user", f"What is {number % 20}?"), ("assistant", f"It is {number}.")]
    return {"messages": [{"role": role, "content": content} for role, content in turns], **more}


def write(directory, entries, **recipe):
    """The list of a source of conversations in one file of JSON lines."""
    return lines_listed(directory, entries, "c", **{"kind": "chat", "validation": 0.3, **recipe})


def both(source):
    return source.train + source.validation


def test_parquet_has_the_conversations_of_json_lines(tmp_path):
    entries = [chat(number) for number in range(60)]
    of_lines = examples.read_chats(write(tmp_path, entries))
    parquet.write_table(pa.Table.from_pylist(entries), tmp_path / "c.parquet", row_group_size=7)
    recipe = {"kind": "chat", "paths": [str(tmp_path / "*.parquet")], "validation": 0.3}
    of_rows = examples.read_chats(listed(tmp_path / "rows", "c", recipe))
    for split in ("train", "validation"):
        rows, lines = ([found.messages for found in getattr(source, split)] for source in (of_rows, of_lines))
        assert rows == lines
    assert len(both(of_rows)) == 60
    prompts = [{found.messages[1]["content"] for found in side} for side in (of_lines.train, of_lines.validation)]
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1]


def test_keys_that_other_rows_have_change_no_conversation(tmp_path):
    calls = [{"function": {"name": "f", "arguments": {name: 1}}} for name in ("a", "b")]
    tools = [{"function": {"name": "f", "parameters": {name: {"type": "integer"}}}} for name in ("a", "b")]
    entries = [chat(number, tools=[tools[number % 2]] if number % 3 else None) for number in range(12)]
    for number, entry in enumerate(entries):
        entry["messages"] += [{"role": "assistant", "tool_calls": [calls[number % 2]]}, {"role": "tool", "content": ""}]
    parquet.write_table(pa.Table.from_pylist(entries), tmp_path / "c.parquet")
    of_lines = both(examples.read_chats(write(tmp_path, entries)))
    recipe = {"kind": "chat", "paths": [str(tmp_path / "c.parquet")], "validation": 0.3}
    of_rows = both(examples.read_chats(listed(tmp_path / "rows", "c", recipe)))
    assert [(one.messages, one.tools) for one in of_rows] == [(one.messages, one.tools) for one in of_lines]
    assert {str(one.tools) for one in of_rows} == {"None", str([tools[0]]), str([tools[1]])}
    assert of_rows[0].messages[3] == {"role": "assistant", "tool_calls": [calls[of_rows[0].id.endswith(":1")]]}


def test_pairs_are_read_from_parquet(tmp_path):
    entries = [{"prompt": f"{number} is ", "completion": "a number", "book": number % 5} for number in range(30)]
    (tmp_path / "files").mkdir()
    path = tmp_path / "files" / "p.parquet"
    parquet.write_table(pa.Table.from_pylist(entries), path)
    recipe = {"kind": "prompt_completion", "paths": [str(path.parent)], "validation": 0.5, "split_field": "book"}
    source = examples.read_pairs(listed(tmp_path / "made", "p", recipe))
    assert {pair.prompt for pair in both(source)} == {entry["prompt"] for entry in entries}
    books = [{int(pair.prompt.split()[0]) % 5 for pair in side} for side in (source.train, source.validation)]
    assert not books[0] & books[1]
    parquet.write_table(pa.Table.from_pylist([*entries, {"prompt": "x", "completion": None}]), path)
    with pytest.raises(UserError, match=r"p.parquet, row 31 must have text in the field completion, got None$"):
        examples.read_pairs(listed(tmp_path / "bad", "p", recipe | {"split_field": None}))
    parquet.write_table(pa.table({"prompt": ["a"]}), path)
    with pytest.raises(UserError, match=r"p.parquet must have the column completion, got prompt$"):
        examples.read_pairs(listed(tmp_path / "short", "p", recipe | {"split_field": None}))


def test_split_field_and_filters(tmp_path, capsys):
    entries = [chat(number, topic=number % 7) for number in range(60)]
    entries.append({"messages": [*entries[0]["messages"], {"role": "user", "content": "x" * 500}], "topic": 0})
    source = examples.read_chats(write(tmp_path, entries, split_field="topic", filters={"max_bytes": 400}))
    assert len(both(source)) == 60
    assert "source c: 1 examples are filtered: filters.max_bytes" in capsys.readouterr().err
    topics = [{int(found.id.rpartition(":")[2]) % 7 for found in side} for side in (source.train, source.validation)]
    assert topics[0] and topics[1] and not topics[0] & topics[1]


BOT = json.dumps({"messages": [{"role": "bot", "content": "a"}]})


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"text": "a"}', "must have the field messages, got text"),
        ("[" * 990 + "]" * 990, "must have at most 200 levels of lists and mappings, got more"),
        (BOT, ": messages[0].role must be one of system, user, assistant"),
    ],
)
def test_malformed_record_is_named_by_file_and_line(tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{json.dumps(chat(1))}\n\n{line}\n")
    with pytest.raises(UserError) as error:
        examples.read_chats(listed(tmp_path, "c", {"kind": "chat", "paths": [str(path)]}))
    found = str(error.value)
    assert found.startswith(f"{path}, line 3{'' if said.startswith(':') else ' '}{said}") and "\n" not in found


def test_documents_are_read_as_examples_with_their_filters(tmp_path):
    entries = [{"text": f"game {number}"} for number in range(40)] + [{"text": ""}, {"text": "long " * 40}, {}]
    recipe = {"validation": 0.3, "filters": {"max_words": 20}}
    source = examples.read_texts(lines_listed(tmp_path, entries, **recipe, max_malformed=0.1))
    assert sorted(found.text for found in both(source)) == sorted(f"game {number}" for number in range(40))
    with pytest.raises(UserError, match=r"sources.a.max_malformed must be at least .* 1 of 43"):
        examples.read_texts(lines_listed(tmp_path / "strict", entries, **recipe, max_malformed=0))
    with pytest.raises(UserError, match=r"sources.a.kind must be chat to read conversations, got jsonl$"):
        examples.read_chats(tmp_path / "sources/a/list.json")
