"""Tensors that FSDP's mixed precision casts, and those that it leaves."""

import torch

from stages.lib.distributed.process_group import process_group
from stages.lib.model.transformer import Attention
from tests.stages.lib.training import float8_steps


def test_the_rotation_is_computed_in_float32_and_all_else_in_bfloat16(monkeypatch):
    dtypes, project = set(), Attention.project

    def recorded(attention, x, cosine, sine):
        dtypes.add((x.dtype, attention.dense.weight.dtype, cosine.dtype, sine.dtype))
        return project(attention, x, cosine, sine)

    monkeypatch.setattr(Attention, "project", recorded)
    with process_group() as device:
        float8_steps.losses(device, 1, dtype="bfloat16", float8=False)
    assert dtypes == {(torch.bfloat16, torch.bfloat16, torch.float32, torch.float32)}
