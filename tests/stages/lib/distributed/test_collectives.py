"""Which device a rank trains on."""

import pytest
import torch

from stages.lib.distributed import collectives


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cpu"), (2, "cuda:1"), (8, "cuda:1")])
def test_each_of_two_ranks_has_a_gpu_of_its_own_or_the_cpu(monkeypatch, gpus, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(collectives._device()) == device
