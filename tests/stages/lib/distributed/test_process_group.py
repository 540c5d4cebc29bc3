"""The device of a rank."""

import pytest
import torch

from stages.lib.distributed import process_group


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cpu"), (2, "cuda:1"), (8, "cuda:1")])
def test_each_of_two_ranks_gets_its_own_gpu_or_the_cpu(monkeypatch, gpus, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(process_group._device()) == device
