"""Attention within documents, against attention to one document at a time."""

import pytest
import torch
from torch.nn.attention import flex_attention as flex

from stages.lib.model.transformer import attend, block_mask, compiled_flex_attention, exact_mask, mask_of

LENGTHS = [[5, 1, 130, 64], [200]]  # two rows; blocks of flex_attention are 128 tokens
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


@pytest.fixture
def flex_with_gradients(monkeypatch):
    """flex_attention has a slow backward pass on the CPU, which it refuses."""
    monkeypatch.setattr(flex, "_validate_device", lambda *_: None)


def documents():
    rows = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS]
    return torch.stack(rows)


def rows():
    """(tokens, documents): a mask reads the shape of the tokens alone."""
    return documents(), documents()


def inputs(dtype=torch.float64):
    generator = torch.Generator().manual_seed(4)
    shape = len(LENGTHS), HEADS, sum(LENGTHS[0]), HEAD_DIM
    q, k, v = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(3))
    return [t.requires_grad_() for t in (q, k[:, :KV_HEADS].clone(), v[:, :KV_HEADS].clone())]


def output_and_gradients(mask, dtype=torch.float64):
    given = inputs(dtype)
    output = attend(*given, mask)
    weights = torch.randn(output.shape, generator=torch.Generator().manual_seed(5), dtype=dtype)
    (output * weights).sum().backward()
    return [output.detach(), *(t.grad for t in given)]


def test_without_documents_there_is_no_mask_and_on_the_cpu_it_is_exact():
    assert mask_of(documents()) is None
    assert torch.equal(mask_of(*rows()), exact_mask(*rows()))
    given = torch.zeros(1, 6, dtype=torch.int64)
    assert mask_of(given, window=6) is None  # as long as the row
    assert torch.equal(mask_of(given, window=5), exact_mask(given, window=5))


def test_each_document_is_attended_to_as_if_alone():
    together = attend(*inputs(), exact_mask(*rows()))
    for row, lengths in enumerate(LENGTHS):
        start = 0
        for length in lengths:
            alone = attend(*(t[row : row + 1, :, start : start + length] for t in inputs()))
            torch.testing.assert_close(together[row, :, start : start + length], alone[0], rtol=1e-12, atol=1e-12)
            start += length


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    ("kept_apart", "window"), [(True, None), (True, 70), (False, 70)], ids=["documents", "both", "window"]
)
def test_the_block_mask_gives_outputs_and_gradients_of_the_exact_one(
    flex_with_gradients, dtype, tolerance, kept_apart, window
):
    given = documents(), documents() if kept_apart else None, window
    ours = output_and_gradients(block_mask(*given), dtype)
    for our, their in zip(ours, output_and_gradients(exact_mask(*given), dtype), strict=True):
        torch.testing.assert_close(our, their, rtol=tolerance, atol=tolerance)


def test_the_block_mask_skips_masked_blocks():
    long = torch.arange(8).repeat_interleave(128).unsqueeze(0)  # each document fills a block
    computed = block_mask(long, long).kv_num_blocks + block_mask(long, long).full_kv_num_blocks
    assert computed.tolist() == [[[1] * 8]]


@pytest.mark.long
@torch.no_grad()
def test_compiled_by_itself_or_in_a_block_the_block_mask_gives_the_same():
    given, mask = [t.detach() for t in inputs(torch.float32)], block_mask(*rows())
    expected = attend(*given, exact_mask(*rows()))
    found = compiled_flex_attention()(*given, block_mask=mask, enable_gqa=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.compile(attend, fullgraph=True)(*given, mask), expected, rtol=1e-5, atol=1e-5)
    torch._dynamo.reset()


def test_a_window_is_the_token_and_those_before_it_within_its_document():
    given = torch.tensor([[0, 0, 0, 1, 1, 1]])
    alone, within = exact_mask(given, window=2), exact_mask(given, given, window=2)
    attended = [[key for key in range(6) if row[key]] for row in alone[0, 0]]
    assert attended == [[0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert [[key for key in range(6) if row[key]] for row in within[0, 0]] == [[0], [0, 1], [1, 2], [3], [3, 4], [4, 5]]
