"""Attention within documents, against attention to one document at a time."""

import types

import pytest
import torch

from stages.lib.model import transformer
from stages.lib.model.transformer import attend, exact_mask, mask_of, segments
from tests.helpers import varlen

LENGTHS = [[5, 1, 130, 64], [200]]  # two rows
HEADS, KV_HEADS, HEAD_DIM = 4, 2, 8


def documents():
    rows = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in LENGTHS]
    return torch.stack(rows)


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
    x = torch.zeros(2, 200, 16, dtype=torch.bfloat16)
    assert mask_of(x, HEAD_DIM) is None and mask_of(x, HEAD_DIM, window=200) is None  # as long as the row
    for given in ((documents(), None), (documents(), 5), (None, 5)):
        assert torch.equal(mask_of(x, HEAD_DIM, *given), exact_mask(x, *given))


@pytest.mark.parametrize(
    ("dtype", "head_size", "has_kernel"),
    [("bfloat16", 64, True), ("float16", 256, True), ("float32", 64, False), ("bfloat16", 12, False)],
)
def test_on_a_gpu_it_is_segments_if_there_is_a_kernel(monkeypatch, dtype, head_size, has_kernel):
    x = types.SimpleNamespace(shape=(2, 200, 16), dtype=getattr(torch, dtype), device=torch.device("cuda"))
    monkeypatch.setattr(transformer, "segments", lambda *_: "segments")
    monkeypatch.setattr(transformer, "exact_mask", lambda *_: "exact")
    assert mask_of(x, head_size, documents()) == ("segments" if has_kernel else "exact")


@pytest.fixture(scope="module", autouse=True)
def kernels():
    varlen.register()


KINDS = {"documents": (documents(), None), "both": (documents(), 70), "window": (None, 70)}


@pytest.mark.parametrize("given", KINDS.values(), ids=KINDS)
def test_segments_give_outputs_and_gradients_of_the_exact_mask(given):
    ours = output_and_gradients(segments(documents(), *given))
    for our, their in zip(ours, output_and_gradients(exact_mask(documents(), *given)), strict=True):
        torch.testing.assert_close(our, their, rtol=1e-12, atol=1e-12)


def test_segments_are_documents_within_their_rows():
    assert segments(documents(), documents()).ends.tolist() == [0, 5, 6, 136, 200, 400]
    assert segments(documents(), window=3).ends.tolist() == [0, 200, 400]
    # the longest is rounded up to a power of two, but not beyond the row
    assert [segments(rows, rows).longest for rows in (documents(), documents()[:1, :6], documents()[:1, :5])] == [
        *(200, 6, 5)
    ]
    assert segments(documents(), torch.arange(200).expand(2, -1) // 3).longest == 4


@pytest.mark.long
@torch.no_grad()
def test_compiled_segments_give_the_same_and_another_number_of_documents_compiles_nothing_again():
    torch._dynamo.reset()
    compiled, graphs = torch.compile(attend, fullgraph=True), torch._dynamo.utils.counters["stats"]
    given, apart, known = [t.detach() for t in inputs(torch.float32)], torch.arange(200).expand(2, -1), []
    for size in (50, 60, 33):  # the longest is 64
        rows = apart // size
        found = compiled(*given, segments(rows, rows))
        torch.testing.assert_close(found, attend(*given, exact_mask(rows, rows)), rtol=1e-5, atol=1e-5)
        known.append(graphs["unique_graphs"])
    assert known[0] == known[-1]
    torch._dynamo.reset()


def test_a_window_is_the_token_and_those_before_it_within_its_document():
    given = torch.tensor([[0, 0, 0, 1, 1, 1]])
    alone, within = exact_mask(given, window=2), exact_mask(given, given, window=2)
    attended = [[key for key in range(6) if row[key]] for row in alone[0, 0]]
    assert attended == [[0], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5]]
    assert [[key for key in range(6) if row[key]] for row in within[0, 0]] == [[0], [0, 1], [1, 2], [3], [3, 4], [4, 5]]
