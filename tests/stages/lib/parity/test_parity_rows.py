"""The tokens of the parity check."""

import contextlib

import pytest
import torch

from stages.lib.parity import parity_rows
from stages.lib.tokens.corpus import Corpus
from tests.helpers import export_fixtures


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    directory = tmp_path_factory.mktemp("rows")
    texts = [text for _, text in export_fixtures.documents("code")]
    tokenizer = export_fixtures.write_tokenizer(directory / "tokenizers" / "main", texts)
    return Corpus(export_fixtures.write_corpus(directory / "tokens" / "main", tokenizer))


@pytest.mark.parametrize(("context", "length"), [(100, 100), (4096, 4096), (1 << 17, parity_rows.LONGEST)])
def test_the_long_row_is_as_long_as_the_context_up_to_a_limit(corpus, context, length):
    row = parity_rows.long_row(corpus, context)
    assert row.shape == (1, length)
    with contextlib.closing(corpus.stream("code", "validation")) as stream:
        assert row[0, :100].tolist() == stream.read(0, 100).tolist()


def test_a_short_corpus_is_repeated(corpus):
    num_tokens = sum(corpus.sources[source]["validation"]["tokens"] for source in corpus.sources)
    row = parity_rows.long_row(corpus, parity_rows.LONGEST)[0]
    assert num_tokens < len(row)
    assert torch.equal(row[num_tokens:], row[: len(row) - num_tokens])


def test_rows_and_prompts_are_spread_over_the_sources(corpus):
    rows = parity_rows.rows(corpus, 4096)
    assert rows.shape == (parity_rows.ROWS, parity_rows.ROW_TOKENS)
    assert len({tuple(row.tolist()) for row in rows}) == parity_rows.ROWS
    assert parity_rows.rows(corpus, 8).shape == (parity_rows.ROWS, 8)
    assert parity_rows.prompts(corpus, 40, 32).shape == (parity_rows.ROWS, 8)
