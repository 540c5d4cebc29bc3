"""CPU kernels for torch's attention over lengths that vary, which has some for GPUs alone: a document at a time."""

import math

import torch
from torch.nn.attention import varlen


def register():
    """Register the kernels in this process."""
    varlen._varlen_attn.register_kernel("cpu")(_forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(_backward)


def _forward(query, key, value, ends, _, longest, __, is_causal=False, scale=None, window=None, *___):
    assert ends[0] == 0 and ends[-1] == len(query) and 0 < ends.diff().min() <= ends.diff().max() <= longest
    assert window[1] == 0 and is_causal == (window[0] < 0) and scale is None
    mixed = [p @ v for p, _, _, v in _documents(query, key, value, ends, window)]
    others = torch.zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)
    return torch.cat(mixed, 1).transpose(0, 1).contiguous(), *others


def _backward(gradient, query, key, value, _, __, ends, ___, ____, _____, ______, _______, scale=None, window=None):
    parts = []
    split = gradient.transpose(0, 1).split(ends.diff().tolist(), 1)
    for g, (p, q, k, v) in zip(split, _documents(query, key, value, ends, window), strict=True):
        of_p = g @ v.mT
        of_scores = p * (of_p - (of_p * p).sum(-1, keepdim=True)) / math.sqrt(q.shape[-1])
        parts.append((of_scores @ k, of_scores.mT @ q, p.mT @ g))
    whole = [torch.cat(part, 1) for part in zip(*parts, strict=True)]  # [H, T, hd]
    sums = [part.unflatten(0, (t.shape[1], -1)).sum(1) for part, t in zip(whole, (query, key, value), strict=True)]
    return tuple(part.transpose(0, 1).contiguous() for part in sums)


def _documents(query, key, value, ends, window):
    """Yield the probabilities [H, L, L] of each document, and its queries, keys and values [H, L, hd]."""
    for begin, end in zip(ends.tolist()[:-1], ends.tolist()[1:], strict=True):
        q, k, v = (t[begin:end].transpose(0, 1) for t in (query, key, value))
        k, v = (t.repeat_interleave(len(q) // len(t), 0) for t in (k, v))
        seen = torch.ones(end - begin, end - begin, dtype=torch.bool).tril()
        seen = seen if window[0] < 0 else seen.triu(-window[0])
        scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
        yield scores.softmax(-1), q, k, v
