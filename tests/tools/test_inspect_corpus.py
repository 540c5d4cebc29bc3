"""inspect, of a corpus: its numbers are the manifest's, its documents the shards', and faults are printed."""

import json
import re
import shutil

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather

from stages import index
from stages.lib import manifest
from stages.lib.sources import documents
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import pretokenized
from tests.helpers.data_fixtures import listed, make, run, texts, tiny_corpus, tokenized, trained, write_jsonl
from tools.inspect import __main__ as inspect
from tools.inspect import corpus_look

SOUND = "  each begins with one BOS, ends with one EOS, has neither inside, and is not empty\n"


def tokenizer_of(corpus):
    return corpus.parents[2] / "tokenizers/main/manifest.json"


def of(corpus, **options):
    """The options for a corpus."""
    return {"corpus": corpus, "tokenizer": tokenizer_of(corpus)} | options


def shard_of(corpus):
    """The path and the description of the first shard of source a."""
    described = json.loads(corpus.read_text())["identity"]["sources"]["a"]["train"]["shards"][0]
    return corpus.parent / described["path"], described


def rows_of(corpus):
    """The ids of its documents."""
    return pa.ipc.open_file(str(shard_of(corpus)[0])).read_all().column("tokens").to_pylist()


def split_of(text, source, side):
    """Return the output on one split of a source."""
    return text.split(f"\n{source}, {side}: a sample of ")[1].partition("\n\n")[0] + "\n"


@pytest.fixture
def copy(corpus, tmp_path):
    """A copy of the corpus and its tokenizer, for one test to change."""
    home = shutil.copytree(corpus.parents[2], tmp_path / "copy")
    return home / "tokens/main/manifest.json"


def of_ids(directory, documents, **tokenize_recipe):
    """A corpus of a source of token ids, lists; half of them in the validation split."""
    path = write_jsonl(directory / "a.jsonl", [{"text": text} for text in texts("a", 60)])
    tokenizer = trained(
        directory, [listed(directory, "a", {"kind": "jsonl", "paths": [path]})], vocab_size=320, sample={"a": 1}
    )
    table = pa.table(
        {"ids": pa.array(documents, pa.list_(pa.int32())), "side": [f"{n}" for n in range(len(documents))]}
    )
    feather.write_feather(table, directory / "ids.arrow", compression="uncompressed")
    recipe = {"kind": "arrow", "paths": [str(directory / "ids.arrow")], "token_ids_field": "ids", "split_field": "side"}
    source = listed(directory, "b", recipe | {"validation": 0.5})
    parts = tokenized(directory, "b", source, tokenizer, **tokenize_recipe)
    return make(index, tokenizer=tokenizer, parts=parts, output=directory / "tokens/main/manifest.json")


def test_the_table_says_what_the_manifest_says_and_a_sound_corpus_has_no_faults(corpus, shown):
    text = shown(**of(corpus))
    identity = json.loads(corpus.read_text())["identity"]
    for name, source in identity["sources"].items():
        for side in ("train", "validation"):
            found = source[side]
            (line,) = re.findall(rf"^{name} +{side} .*", text, re.M)
            numbers = [str(found["documents"]), f"{found['tokens']:,}", f"{found['tokens'] / found['documents']:,.1f}"]
            numbers += [f"{found['text_bytes'] / found['tokens']:.3f}", str(len(found["shards"])), "unknown"]
            assert line.split()[2:] == numbers
        train = split_of(text, name, "train")
        documents = int(re.match(r"(\d+) of \1 documents\n", train)[1])
        assert sum(map(int, re.findall(r"\| +(\d+) +[<\d.]+%$", train, re.M))) == documents
    total = sum(source["train"]["tokens"] for source in identity["sources"].values())
    assert re.search(rf"^all +train +\d+ +{total:,} ", text, re.M)
    assert "\n  tokens: large_list<item: uint16> not null, one document per row\n" in text
    assert text.count(SOUND) == 4
    assert text.count("  unknown ids: 0 (0.0%)\n") == 4


def test_documents_are_shown_as_they_stand_in_the_shard_and_so_are_the_ids_between_them(corpus, shown):
    train = split_of(shown(**of(corpus, documents=2)), "a", "train")
    tokenizer = Tokenizer(tokenizer_of(corpus))
    rows = rows_of(corpus)
    heads = re.findall(r"  document of ([\d,]+) tokens\n  \| <BOS>(.*)\n", train)
    assert [int(count.replace(",", "")) for count, _ in heads] == [len(row) for row in rows[:2]]
    for (_, line), row in zip(heads, rows, strict=False):
        assert tokenizer.decode(row).startswith(line.partition(" ... (+")[0].removesuffix("<EOS>"))
    left, right = re.search(r"document boundary: (.*)  \|\|  (.*)", train).groups()
    assert re.findall(r"(?:^|  )(\d+) ", left) == [str(number) for number in rows[0][-6:]]
    assert re.findall(r"(?:^|  )(\d+) ", right) == [str(number) for number in rows[1][:6]]
    assert left.endswith("  2 EOS") and right.startswith("1 BOS  ")


def test_a_large_split_is_sampled_at_beginning_middle_and_end(corpus, shown, monkeypatch):
    monkeypatch.setattr(corpus_look, "RUN_DOCUMENTS", 5)
    train = split_of(shown(**of(corpus, documents=3)), "a", "train")
    (total,) = re.match(r"15 of (\d+) documents, from beginning, middle and end\n", train).groups()
    assert int(total) > 100
    rows = rows_of(corpus)
    lengths = [int(count) for count in re.findall(r"  document of (\d+) tokens", train.replace(",", ""))]
    assert lengths == [len(rows[at]) for at in (0, (len(rows) - 5) // 2, len(rows) - 5)]


def test_runs_go_over_the_ends_of_shards(tmp_path, shown, monkeypatch):
    from stages.lib.tokens import shards

    monkeypatch.setattr(shards, "SHARD_BYTES", 4000)
    text = shown(**of(tiny_corpus(tmp_path, documents=60, parts=2)))
    (documents, shards_) = re.search(r"^a +train +(\d+) +[\d,]+ +[\d,.]+ +[\d.]+ +(\d+)", text, re.M).groups()
    assert int(shards_) > 5
    train = split_of(text, "a", "train")
    assert train.startswith(f"{documents} of {documents} documents\n") and SOUND in train


def test_faults_of_pretokenized_documents_are_counted(tmp_path, shown, monkeypatch):
    monkeypatch.setattr(documents, "is_empty", lambda *_: False)  # corpora of an earlier version have them
    monkeypatch.setattr(pretokenized.Padding, "remove", lambda _, entries: entries)
    bos, eos = 1, 2
    kinds = {
        "begin with more than one BOS": [bos, bos, 9, 10, eos],
        "end with more than one EOS": [bos, 9, 10, eos, eos],
        "have BOS or EOS inside": [9, 10, eos, bos, 11],
        "are empty: no id between BOS and EOS": [bos, eos],
        "have the unknown id, of text that the tokenizer cannot encode": [9, 0, 10],
        None: [9, 10, 11],
    }
    text = shown(**of(of_ids(tmp_path, [ids for ids in kinds.values() for _ in range(20)])))
    assert SOUND not in text
    for fault in filter(None, kinds):
        found = re.findall(rf"^  (\d+) \(\d+\.\d%\) {fault}$", text, re.M)
        assert sum(map(int, found)) == 20 and len(found) == 2
    assert sum(map(int, re.findall(r"^  unknown ids: (\d+) ", text, re.M))) == 20
    assert re.findall(r"^  \d+ \(.*\) (do not .*|.*vocabulary)$", text, re.M) == []


def test_a_corpus_without_bos_has_none(tmp_path, shown):
    documents = [[9, 10, 11, 2]] * 30 + [[1, 1, 9]] * 30
    text = shown(**of(of_ids(tmp_path, documents, bos=False), documents=1))
    assert "BOS 1 (not added), EOS 2\n" in text
    found = re.findall(r"^  (\d+) \(\d+\.\d%\) begin with BOS, which the corpus does not add$", text, re.M)
    assert sum(map(int, found)) == 30
    assert "do not begin" not in text


def test_filtered_documents_and_licenses_are_printed(tmp_path, shown):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in [*texts("a", 60), "", " ", "\n"]] + [{}])
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [path], "validation": 0.2, "license": "CC0-1.0"})
    tokenizer = trained(tmp_path, [source], vocab_size=320, sample={"a": 1})
    parts = tokenized(tmp_path, "a", source, tokenizer)
    corpus = make(index, tokenizer=tokenizer, parts=parts, output=tmp_path / "tokens/main/manifest.json")
    text = shown(**of(corpus))
    assert "\nmalformed or filtered in a: 3 empty (4.7%), 1 no text in text (1.6%)\n" in text
    assert re.search(r"^a +train .* CC0-1\.0$", text, re.M)
    manifest.write(corpus, "index", manifest.read(corpus).identity, {"licenses": {}})
    assert f"\nmalformed or filtered in a: unknown, since {corpus} is of a version that did not record it\n" in shown(
        **of(corpus)
    )


def test_an_id_outside_the_vocabulary_is_reported(copy, shown):
    path, described = shard_of(copy)
    with open(path, "r+b") as file:
        file.seek(described["batches"][0]["values_at"] + 2)
        file.write(np.array([999], "<u2").tobytes())
    train = split_of(shown(**of(copy)), "a", "train")
    assert re.search(r"^  1 \(\d\.\d%\) have ids that are not in the vocabulary$", train, re.M)


def test_another_tokenizer_is_refused(corpus, tmp_path, refused):
    other = tokenizer_of(tiny_corpus(tmp_path, documents=60, vocab_size=300))
    line = refused(**of(corpus, tokenizer=other))
    assert re.fullmatch(
        rf"inspect: --tokenizer {other} must be that of {corpus} \(digest [0-9a-f]{{16}}\), got digest [0-9a-f]{{16}}",
        line,
    )


@pytest.mark.parametrize("at", ["footer", "batch"])
def test_a_flipped_bit_in_what_arrow_says_of_a_shard_is_one_sentence(copy, capsys, at):
    """It may as well change nothing, but must not be a bug: Arrow raises errors of many kinds."""
    path, described = shard_of(copy)
    whole = path.read_bytes()
    begin = described["batches"][0]["offsets_at"]
    codes = set()
    for place in range(len(whole) - 300, len(whole), 7) if at == "footer" else range(begin - 200, begin, 5):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << place % 8
        path.write_bytes(spoilt)
        capsys.readouterr()
        code = run(inspect, corpus=copy, tokenizer=tokenizer_of(copy))
        lines = capsys.readouterr().err.splitlines()
        assert [line.startswith(f"inspect: {path} must be an Arrow file") for line in lines] == [True] * (code == 2)
        codes.add(code)
    assert codes == {0, 2}


def test_a_shard_that_is_gone_or_no_arrow_file_is_one_sentence(copy, refused):
    path, described = shard_of(copy)
    path.write_bytes(b"x" * described["bytes"])
    assert refused(**of(copy)).startswith(f"inspect: {path} must be an Arrow file: ")
    path.unlink()
    assert refused(**of(copy)).startswith(f"inspect: {path} is missing, but {copy} lists it")
