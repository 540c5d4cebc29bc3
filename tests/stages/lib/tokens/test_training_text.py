"""The training documents of a part are those that were tokenized, as text."""

import pytest

from stages import tokenize
from stages.lib import manifest
from stages.lib.tokenizer.tokenizer import Tokenizer
from stages.lib.tokens import pretokenized, training_text
from tests.helpers.data_fixtures import listed, make, texts, trained, write_jsonl


@pytest.mark.parametrize("model", ["bpe", "unigram"])  # decoded by SentencePiece, and by tokenizers
@pytest.mark.parametrize("segment_ids", [50, 1 << 18])
def test_texts_are_those_of_the_source(tmp_path, monkeypatch, model, segment_ids):
    monkeypatch.setattr(training_text, "SEGMENT_IDS", segment_ids)
    monkeypatch.setattr(pretokenized, "SEGMENT_IDS", segment_ids)
    made = [text for text in texts("a", 30) if text.strip()] + ["</s> \u00e9\u4e2d\U0001f600 x" * 40]
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": text} for text in made])
    source = listed(tmp_path, "a", {"kind": "jsonl", "paths": [path], "validation": 0})
    tokenizer = trained(tmp_path, [source], vocab_size=400, sample={"a": 1}, model=model)
    part = make(tokenize, list=source, tokenizer=tokenizer, part=0, output=tmp_path / "tokens/a/00000.json")
    found = list(training_text.documents(manifest.read(part), Tokenizer(tokenizer)))
    assert [number for number, _ in found] == list(range(len(made)))
    assert sorted(text for _, text in found) == sorted(made)
