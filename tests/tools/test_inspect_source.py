"""inspect, of a source: what is shown of it is what would become of it, and a large one is only sampled."""

import json
import re
from collections import Counter

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from stages.lib.tokenizer.tokenizer import Tokenizer
from tests.helpers.data_fixtures import listed, run, texts, tokenized, trained, write_jsonl
from tools.inspect import __main__ as inspect

TEXTS = texts("a", 120)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tokenizer")
    source = listed(directory, "a", jsonl(directory, [{"text": text} for text in TEXTS]))
    return trained(directory, [source], vocab_size=320, sample={"a": 1})


def jsonl(directory, entries, **recipe):
    """The recipe of a source of some records."""
    path = write_jsonl(directory / "texts/a.jsonl", entries)
    return {"kind": "jsonl", "paths": [path], "validation": 0.2, **recipe}


def bars(text, unit):
    """{range of lengths: number of documents} of the bars under a unit."""
    part = text.split(f"{unit} per document: ")[1]
    lines = re.findall(r"^ +([\d, to]+) \|#* *\| +([\d,]+) ", part.partition("\n\n")[0], re.M)
    return {name.strip(): int(count.replace(",", "")) for name, count in lines if count != "0"}


def counted(lengths):
    """The same, of lengths."""
    lows = Counter(1 << (length.bit_length() - 1) for length in lengths)
    return {f"{low:,} to {2 * low - 1:,}" if low > 1 else "1": count for low, count in sorted(lows.items())}


def numbers(text, pattern):
    return [int(number.replace(",", "")) for number in re.search(pattern, text).groups()]


def test_a_recipe_is_tried_without_a_list_and_shows_what_its_list_shows(tmp_path, shown):
    recipe = jsonl(tmp_path, [{"text": text} for text in TEXTS])
    tried = shown(recipe=recipe)
    assert tried.startswith("source recipe: jsonl, 1 file, ")
    source = listed(tmp_path, "web", recipe)
    assert shown(source=source) == tried.replace("source recipe:", "source web:", 1)


def test_what_is_counted_is_what_tokenize_makes(tmp_path, tokenizer, shown):
    entries = [{"text": text} for text in TEXTS] + [{"text": " "}, {"text": 5}, {"text": TEXTS[0]}, {}]
    source = listed(tmp_path, "a", jsonl(tmp_path, entries, max_malformed=0.5, filters={"max_bytes": 900}))
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    made = json.loads(part.read_text())
    text = shown(source=source, tokenizer=tokenizer)
    sides = [made["identity"][side] for side in ("train", "validation")]
    documents, tokens, text_bytes = (sum(side[key] for side in sides) for key in ("documents", "tokens", "text_bytes"))
    assert numbers(text, r"kept: ([\d,]+) documents, ([\d,]+) of them") == [documents, sides[1]["documents"]]
    for reason, count in made["record"]["dropped"].items():
        assert re.search(rf"^(?:malformed|filtered): {count} \(\d+\.\d%\) {re.escape(reason)}$", text, re.M)
    assert len(re.findall("^(?:malformed|filtered): [0-9]", text, re.M)) == len(made["record"]["dropped"]) == 3
    assert f"\n{text_bytes / (tokens - 2 * documents):.3f} bytes per token" in text
    assert "\nrepeated: 1 (" in text
    assert f"sample: {len(entries)} records, " in text and ": all of the source" in text


def test_bars_count_documents_by_length(tmp_path, tokenizer, shown):
    text = shown(recipe=jsonl(tmp_path, [{"text": text} for text in TEXTS]), tokenizer=tokenizer)
    assert bars(text, "bytes") == counted(len(text.encode()) for text in TEXTS)
    assert bars(text, "tokens") == counted(map(len, Tokenizer(tokenizer).encode(TEXTS)))


def test_fields_are_those_of_all_records_with_types_uses_and_an_example(tmp_path, shown):
    entries = [{"body": text, "id": number, "tags": ["x"]} for number, text in enumerate(TEXTS)]
    entries += [{"body": None, "extra": {"a": 1.5}}] * 30
    text = shown(recipe=jsonl(tmp_path, entries, text_field="body", id_field="id"))
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line.startswith("  ")}
    assert "fields of 150 records" in text
    assert lines["body"].startswith("body text (120), null (30) 100.0% text_field ")
    assert lines["id"] == "id whole number 80.0% id_field 0"
    assert lines["tags"] == "tags list of texts 80.0% ['x']"
    assert lines["extra"] == "extra mapping 20.0% {'a': 1.5}"


def test_a_missing_field_and_a_file_of_another_format_are_shown(tmp_path, shown):
    recipe = jsonl(tmp_path, [{"url": "u", "body": text} for text in TEXTS])
    text = shown(recipe=recipe)
    assert "no record has the field text; the field with the most text is body\n" in text
    assert "malformed: 120 (100.0%) no text in text\n" in text
    assert "the source would be refused: 100.0% of the records are malformed, and max_malformed is 0.05\n" in text
    assert text.endswith("kept: none\n")
    with open(recipe["paths"][0], "w") as file:
        json.dump([{"text": "one"}, {"text": "two"}], file, indent=1)
    text = shown(recipe=recipe)
    assert "fields: none, since no line of the sample holds a JSON object\n" in text
    assert f'{recipe["paths"][0]} begins with: [\\n {{\\n  "text": "one"\\n' in text


def test_what_a_terminal_would_obey_is_written_out(tmp_path, shown):
    text = "red \x1b[31m\u202e\r\n\ttab"
    recipe = jsonl(tmp_path, [{"text": text, "a\x1b": "\x07", "id": "\x1b]0;"}, {"text": 1}], id_field="id")
    found = shown(recipe=recipe)
    assert not set(found) & {"\x1b", "\x07", "\r", "\u202e"}
    assert "\n\\x1b]0;: " in found
    assert "\n  | red \\x1b[31m\\u202e\\x0d\n  | \ttab\n" in found


def test_long_documents_are_shortened_and_as_many_shown_as_asked_for(tmp_path, shown):
    recipe = jsonl(tmp_path, [{"text": f"{'x' * 300}\n" + "line\n" * 50}] * 9)
    text = shown(recipe=recipe, documents=2)
    assert text.count(" ... (+190 characters)\n") == text.count("  ... 39 more lines\n") == 2
    assert "| line" not in shown(recipe=recipe, documents=0)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "text"])
def test_a_large_source_is_sampled_in_three_places(tmp_path, tokenizer, shown, kind):
    rows = [f"{number} {text * 5}" for number, text in enumerate(texts("b", 2000))]
    if kind == "text":
        paths = [tmp_path / f"{number:05d}.txt" for number in range(len(rows))]
        for path, row in zip(paths, rows, strict=True):
            path.write_text(row)
    elif kind == "parquet":
        paths = [tmp_path / "a.parquet"]
        plain = {"compression": "none", "write_statistics": False}
        parquet.write_table(pa.table({"text": rows}), paths[0], row_group_size=20, **plain)
    else:
        paths = [write_jsonl(tmp_path / "a.jsonl", [{"text": row} for row in rows])]
    recipe = {"kind": kind, "paths": [str(path) for path in paths]}
    text = shown(recipe=recipe, documents=3, sample_mb=1, tokenizer=tokenizer)
    assert ": beginning, middle and end of the source; --sample-mb reads more\n" in text
    places = [int(number) for number in re.findall(r"\n  \| (\d+) ", text)]
    assert [place // 500 for place in places] in ([0, 1, 3], [0, 2, 3]) and places[0] == 0
    (kept,) = numbers(text, r"kept: ([\d,]+) documents")
    assert 200 < kept < 600
    assert "repeated: 0 (" in text
    size = sum(len(row.encode()) for row in rows) / 1e6
    (estimate,) = re.search(r"estimate for the whole source: ([\d.]+) MB of text and ", text).groups()
    assert float(estimate) == pytest.approx(size, rel=0.1)


def test_one_large_compressed_file_is_sampled_at_its_beginning_once(tmp_path, shown):
    rows = [{"text": f"{number} {text * 5}"} for number, text in enumerate(texts("b", 2000))]
    path = tmp_path / "a.jsonl.lz4"
    lines = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(pa.compress(lines, "lz4", asbytes=True))
    text = shown(recipe={"kind": "jsonl", "paths": [str(path)]}, sample_mb=1)
    assert "repeated: 0 (" in text
    (kept,) = numbers(text, r"kept: ([\d,]+) documents")
    assert kept < 1000
    assert "estimate for the whole source" not in text


def test_columns_of_a_table_are_shown_before_one_is_missed(tmp_path, shown, capsys):
    path = str(tmp_path / "a.parquet")
    parquet.write_table(pa.table({"content": TEXTS, "n": [1] * len(TEXTS)}), path)
    assert run(inspect, recipe={"kind": "parquet", "paths": [path]}) == 2
    said = capsys.readouterr()
    assert re.search(r"\n  n +int64 +1\n", said.out)
    assert said.err == f"inspect: {path} must have the column text, got content, n\n"
    text = shown(recipe={"kind": "parquet", "paths": [path], "text_field": "content"})
    assert re.search(r"\n  content +string +text_field ", text)
    assert "kept: 120 documents, " in text


def test_ids_are_shown_as_ids_or_as_text_by_their_tokenizer(tmp_path, tokenizer, shown):
    ids = [found.tolist() for found in Tokenizer(tokenizer).encode(TEXTS)]
    path = str(tmp_path / "a.arrow")
    feather.write_feather(pa.table({"ids": ids}), path, compression="uncompressed")
    recipe = {"kind": "arrow", "paths": [path], "token_ids_field": "ids"}
    text = shown(recipe=recipe, documents=1)
    assert bars(text, "tokens") == counted(map(len, ids))
    assert "bytes per document" not in text
    assert f"\n  | {' '.join(map(str, ids[0][:20]))} ...\n" in text
    text = shown(recipe=recipe, documents=1, tokenizer=tokenizer)
    assert bars(text, "bytes") == counted(len(text.encode()) for text in TEXTS)
    first = TEXTS[0].split("\n")[0]
    assert f"\n  | {first[:110]}" in text


def test_documents_without_ids_are_counted_as_tokenize_counts_them(tmp_path, tokenizer, shown):
    bos, eos = Tokenizer(tokenizer).bos, Tokenizer(tokenizer).eos
    path = str(tmp_path / "a.arrow")
    table = pa.table({"ids": [[bos, 5, eos], [], [bos, eos], [eos], [bos, eos], [6]]})
    feather.write_feather(table, path, compression="uncompressed")
    recipe = {"kind": "arrow", "paths": [path], "token_ids_field": "ids", "validation": 0.5}
    text = shown(recipe=recipe, tokenizer=tokenizer)
    assert "\nfiltered: 4 (66.7%) empty\n" in text and "\nkept: 2 documents, " in text
    (part,) = tokenized(tmp_path, "a", listed(tmp_path, "a", recipe), tokenizer)
    assert json.loads(part.read_text())["record"]["dropped"] == {"empty": 4}
    text = shown(recipe=recipe)  # without a tokenizer BOS and EOS are ids like others
    assert "\nfiltered: 1 (16.7%) empty\n" in text and "\nkept: 5 documents, " in text


def test_pairs_are_shown_with_their_prompts(tmp_path, shown):
    path = write_jsonl(tmp_path / "p.jsonl", [{"prompt": "one\ntwo", "completion": " three"}] * 4)
    text = shown(recipe={"kind": "prompt_completion", "paths": [path]}, documents=1)
    assert "kept: 4 pairs, " in text and "parts" not in text
    assert re.search(r"\n  completion +text +100.0% +completion_field +three\n", text)
    assert text.endswith(f"\n{path}:1: 13 bytes\n  > one\n  > two\n  |  three\n")


def test_conversations_are_shown_with_their_roles(tmp_path, shown):
    turns = [("user", "one"), ("assistant", "two")]
    chats = [{"messages": [{"role": role, "content": content} for role, content in turns]}] * 4
    paths = {"jsonl": write_jsonl(tmp_path / "c.jsonl", chats), "parquet": str(tmp_path / "c.parquet")}
    parquet.write_table(pa.Table.from_pylist(chats), paths["parquet"])
    for path, first in ((paths["jsonl"], 1), (paths["parquet"], 0)):
        text = shown(recipe={"kind": "chat", "paths": [path]}, documents=1)
        assert "kept: 4 conversations, " in text and "parts" not in text
        assert re.search(r"\n  messages +list\S* .*messages_field", text)
        assert text.endswith(f"\n{path}:{first}: 24 bytes\n  | user: one\n  | assistant: two\n")


def test_sizes_of_parts_and_an_empty_validation_split_are_printed(tmp_path, shown):
    for number in range(4):
        write_jsonl(tmp_path / f"texts/{number}.jsonl", [{"text": "x" * 1000}])
    text = shown(recipe={"kind": "jsonl", "paths": [str(tmp_path / "texts")]})
    assert "parts: each of 2 would have 2.0 kB; 4 of 8 would be empty\n" in text
    text = shown(recipe={"kind": "jsonl", "paths": [str(tmp_path / "texts/0.jsonl")]})
    assert "parts: the only file would stay whole, in one part\n" in text
    recipe = jsonl(tmp_path, [{"text": "one two"}, {"text": "three"}])
    said = "the validation split is empty, and a corpus needs one: raise validation\n"
    assert said in shown(recipe=recipe | {"validation": 0})
    assert said not in shown(recipe=recipe | {"validation": 0.9})


def test_the_python_installation_is_shown(shown):
    text = shown(recipe={"kind": "python-code"}, documents=1)
    assert text.startswith("source recipe: python-code, ")
    assert "__future__.py: " in text and '\n  | """Record of phased-in incompatible language changes.\n' in text


def test_options_that_do_not_go_together_and_a_file_that_is_not_as_listed_are_refused(
    tmp_path, corpus, tokenizer, refused
):
    recipe = jsonl(tmp_path, [{"text": "one"}])
    source = listed(tmp_path, "a", recipe)
    one = "exactly one of --source, --recipe, --corpus and --duplicates must be given, got"
    of_corpus = {"corpus": corpus, "tokenizer": tokenizer}
    for options, expected in (
        ({}, f"{one} none of them"),
        ({"source": source, "corpus": corpus}, f"{one} --source and --corpus"),
        ({"source": source, "recipe": {"kind": "python-code"}}, f"{one} --source and --recipe"),
        (of_corpus | {"run": "x"}, "--step must be given with --run: a step belongs to a run"),
        (of_corpus | {"step": 1}, "--run must be given with --step: a step belongs to a run"),
        ({"corpus": corpus}, "--tokenizer must be given with --corpus: the manifest of its tokenizer"),
        ({"source": source, "run": "x", "step": 1}, "--run must be given with the --corpus of the run, got --source"),
        ({"source": source, "samples": 2}, "--samples must be left out for a source"),
        (of_corpus | {"sample_mb": 2}, "--sample-mb must be left out for a corpus"),
        (of_corpus | {"run": "x", "step": 1, "documents": 2}, "--documents must be left out for a step"),
        ({"source": source, "documents": -1}, "--documents must be at least 0, got -1"),
        ({"source": source, "sample_mb": 0}, "--sample-mb must be at least 1, got 0"),
        ({"source": corpus}, f"{corpus} is the manifest of stages.index, expected one of stages.list"),
    ):
        assert refused(**options) == f"inspect: {expected}"
    write_jsonl(tmp_path / "texts/a.jsonl", [{"text": "three"}])
    expected = f"{recipe['paths'][0]} must have 16 bytes by {source}, got 18; run -R list"
    assert refused(source=source) == f"inspect: {expected}"


def rows_of(text):
    """{rule: [documents, bytes]} of the table of --filters."""
    lines = text.partition("\nrule ")[2].partition("\n\n")[0].splitlines()[1:]
    found = [
        re.fullmatch(r"(\S+(?: \S+)*?)(?:  +\S.*?)??  +([\d,]+) +[<\d.]+%  +(\S+) bytes +[<\d.]+%", line)
        for line in lines
    ]
    return {one[1]: [int(one[2]), int(one[3])] for one in found if one}


def test_filters_that_are_tried_remove_what_tokenize_filters(tmp_path, tokenizer, shown):
    lines = ("a b", "Short line.", "one two three four", "One two three four.", "", "Five six seven eight nine.")
    ends = dict.fromkeys(("short_line_thr", "char_duplicates_ratio", "new_line_ratio")) | {"line_punct_thr": 0.5}
    rules = {"min_words": 3, "max_symbols": 0.9, "fineweb_quality": ends}
    plain = jsonl(tmp_path, [{"text": text} for text in lines], validation=0.2)
    text = shown(recipe=plain, filters=rules)
    source = listed(tmp_path, "a", plain | {"filters": rules, "mask": ["email"]})
    (part,) = tokenized(tmp_path, "a", source, tokenizer)
    rows = rows_of(text)
    assert rows == {
        "filters.min_words": [3, 14],
        "filters.fineweb_quality.line_punct_thr": [1, 18],
        "kept": [2, 45],
    }
    dropped = json.loads(part.read_text())["record"]["dropped"]
    assert {reason: number for reason, (number, _) in rows.items() if reason != "kept"} == dropped
    path = plain["paths"][0]
    assert f"\nfilters.min_words: 3\n  {path}:1: 2 | a b\n  {path}:2: 2 | Short line.\n  {path}:5: 0 | " in text
    assert f"\nfilters.fineweb_quality.line_punct_thr: 0.5\n  {path}:3: 0 | one two three four\n" in text
    own = shown(source=source, filters="")
    assert own.replace("source a:", "source recipe:", 1) == text
    few = shown(recipe=plain, filters={"max_bytes": 18}, documents=0)
    assert rows_of(few) == {"filters.max_bytes": [2, 45], "empty": [1, 0], "kept": [3, 32]}
    assert ".jsonl:" not in few.partition("\nsample: ")[2]


def test_lines_that_c4_removes_are_counted(tmp_path, shown):
    text = shown(
        recipe=jsonl(tmp_path, [{"text": "A menu\nThis line has a period.\n" * 3}]),
        filters={"c4_quality": {"min_num_sentences": 2}},
    )
    assert rows_of(text) == {"lines of other documents": [1, 22], "kept": [1, 71]}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"filters": ""}, "--filters must be followed by filters as JSON to try, since sources.recipe has none of its"),
        ({"filters": "{}"}, "--filters must be followed by filters as JSON to try, since sources.recipe has none of"),
        ({"filters": {"min_word": 3}}, "unknown key --filters.min_word; did you mean --filters.min_words?"),
        ({"filters": '{"min'}, "--recipe is not valid JSON"),
        ({"filters": {"max_words": 3}, "tokenizer": "x"}, "--tokenizer must be left out with --filters: filters read"),
    ],
)
def test_a_mistake_in_filters_to_try_is_one_sentence(tmp_path, refused, options, said):
    assert refused(recipe=jsonl(tmp_path, [{"text": "a"}]), **options).startswith(f"inspect: {said}")


def test_filters_are_not_tried_on_a_corpus(tmp_path, refused):
    line = refused(corpus=tmp_path / "manifest.json", filters="")
    assert line == "inspect: --filters must be given with --source or --recipe: a corpus is filtered already"
