"""The pairs of a source: the fields of a record, the split, and sources of other kinds."""

import json

import pytest

from stages import tokenize, train_tokenizer
from stages.lib.errors import UserError
from stages.lib.sources import examples
from stages.lib.sources.kinds.registry import DOCUMENT_KINDS
from tests.helpers.data_fixtures import lines_listed, listed, refused, trained

WORDS = ("red", "green", "blue", "grey", "pink", "white")


def write(directory, entries, **recipe):
    """The list of a source of pairs in one file, qa.jsonl."""
    return lines_listed(directory, entries, "qa", **{"kind": "prompt_completion", "validation": 0.3, **recipe})


def records(count=60):
    return [{"prompt": f"{number} is ", "completion": WORDS[number % 6]} for number in range(count)]


def both(source):
    return source.train + source.validation


def test_every_record_is_a_pair_in_one_split(tmp_path):
    source = examples.read_pairs(write(tmp_path, records()))
    assert {(pair.prompt, pair.completion) for pair in both(source)} == {
        (entry["prompt"], entry["completion"]) for entry in records()
    }
    assert len(both(source)) == 60
    assert {pair.split for pair in source.train} == {"train"}
    assert {pair.split for pair in source.validation} == {"validation"}
    assert source.train[0].id.endswith("qa.jsonl:1") or source.validation[0].id.endswith("qa.jsonl:1")


def test_a_byte_order_mark_before_the_first_line_is_none_of_it(tmp_path):
    path = tmp_path / "qa.jsonl"
    lines = "".join(json.dumps(entry) + "\n" for entry in records())
    path.write_text(lines, encoding="utf-8-sig")
    recipe = {"kind": "prompt_completion", "paths": [str(path)], "validation": 0.3}
    assert len(both(examples.read_pairs(listed(tmp_path, "qa", recipe)))) == 60
    path.write_text(lines + "\ufeff" + lines, encoding="utf-8")
    with pytest.raises(UserError, match="line 61 must be a JSON object"):
        examples.read_pairs(listed(tmp_path / "inside", "qa", recipe))


def test_equal_prompts_are_in_one_split_unless_a_split_field_decides(tmp_path):
    entries = [{"q": WORDS[number % 6], "a": str(number)} for number in range(60)]
    source = examples.read_pairs(write(tmp_path, entries, prompt_field="q", completion_field="a"))
    assert source.train and source.validation
    assert not {pair.prompt for pair in source.train} & {pair.prompt for pair in source.validation}
    entries = [{**entry, "book": number % 10} for number, entry in enumerate(records())]
    source = examples.read_pairs(write(tmp_path, entries, split_field="book"))
    books = [{int(pair.prompt.split()[0]) % 10 for pair in side} for side in (source.train, source.validation)]
    assert books[0] and books[1] and not books[0] & books[1]
    with pytest.raises(UserError, match=r"qa.jsonl, line 61 must have text or a whole number in the field book"):
        examples.read_pairs(write(tmp_path, [*entries, entries[0] | {"book": None}], split_field="book"))


def test_the_digest_is_that_of_content_and_recipe(tmp_path):
    first = examples.read_pairs(write(tmp_path / "a", records())).digest
    assert examples.read_pairs(tmp_path / "a" / "sources" / "qa" / "list.json").digest == first
    changed = [*records()[:-1], {"prompt": "59 is ", "completion": "black"}]  # as long as white: the list is the same
    path = tmp_path / "a" / "qa.jsonl"
    path.write_text("".join(json.dumps(entry) + "\n" for entry in changed))
    assert examples.read_pairs(tmp_path / "a" / "sources" / "qa" / "list.json").digest != first
    assert examples.read_pairs(write(tmp_path / "a", records(), validation=0.4)).digest != first


GOOD = '{"prompt": "a", "completion": "b"}\n'


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"prompt": "a"}', "must have the field completion, got prompt"),
        ('{"prompt": "a", "completion": " \\n"}', "must have text in the field completion, got ' \\n'"),
        ('{"prompt": "a", "completion": null}', "must have text in the field completion, got None"),
        ('{"completion": "b"}', "must have the field prompt, got completion"),
        ('["a", "b"]', "must be a JSON object with the field prompt, got ['a', 'b']"),
        ('{"prompt": "a", ', "must be a JSON object: "),
    ],
)
def test_a_malformed_record_is_named_by_file_and_line(tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{GOOD}\n{line}\n{GOOD}")
    source_list = listed(tmp_path, "qa", {"kind": "prompt_completion", "paths": [str(path)]})
    with pytest.raises(UserError) as error:
        examples.read_pairs(source_list)
    assert str(error.value).startswith(f"{path}, line 3 {said}")
    assert "\n" not in str(error.value)


def test_a_file_that_is_not_as_it_was_listed_is_refused(tmp_path):
    source_list = write(tmp_path, records())
    with open(tmp_path / "qa.jsonl", "a") as file:
        file.write(GOOD)
    with pytest.raises(UserError, match=r"qa.jsonl has .* bytes, but .* lists"):
        examples.read_pairs(source_list)


def test_a_source_of_text_has_no_pairs(tmp_path):
    source = lines_listed(tmp_path, ["a"])
    with pytest.raises(UserError, match=r"sources.a.kind must be prompt_completion or python-statements .* got jsonl"):
        examples.read_pairs(source)


def test_a_source_of_pairs_is_no_text_for_a_corpus_or_a_tokenizer(tmp_path, capsys):
    source_list = write(tmp_path, records())
    text_list = lines_listed(tmp_path, [{"text": "a line of text"}] * 9)
    kinds = f"{', '.join(DOCUMENT_KINDS[:-1])} or {DOCUMENT_KINDS[-1]}"
    said = f"a source of a tokenizer or a corpus must be of the kind {kinds}, got prompt_completion, which"
    output = tmp_path / "out" / "manifest.json"
    recipe = {"vocab_size": 300, "sample": {"qa": 1}}
    assert said in refused(capsys, train_tokenizer, lists=[source_list], recipe=recipe, output=output)
    tokenizer = trained(tmp_path, [text_list], vocab_size=270, sample={"a": 1})
    assert said in refused(capsys, tokenize, list=source_list, tokenizer=tokenizer, part=0, output=output)
