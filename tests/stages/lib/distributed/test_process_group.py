"""The device of a rank."""

import pytest
import torch

from stages.lib import log
from stages.lib.distributed import gpus, process_group


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (1, "cpu"), (2, "cuda:1"), (8, "cuda:1")])
def test_each_of_two_ranks_gets_its_own_gpu_or_the_cpu(monkeypatch, gpus, device):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(process_group._device()) == device


@pytest.mark.parametrize(
    ("by_torch", "listed", "sentence"),
    [
        (0, "2", "running on the CPU: nvidia-smi lists 2 GPUs, and torch "),
        (1, "2", "running on the CPU: nvidia-smi lists 2 GPUs, and torch "),
        (1, None, "running on the CPU: this machine has 2 ranks and only 1 GPUs"),
        (0, "0", ""),
        (0, None, ""),
    ],
)
def test_gpus_that_are_not_used_are_named(monkeypatch, capsys, by_torch, listed, sentence):
    log.to(None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: by_torch)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.delenv(gpus.LISTED, raising=False)
    if listed is not None:
        monkeypatch.setenv(gpus.LISTED, listed)
    assert process_group._device().type == "cpu"
    assert capsys.readouterr().err.startswith(sentence) if sentence else capsys.readouterr().err == ""
