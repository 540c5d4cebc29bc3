"""The device of a rank, and what is set before it is used."""

import os

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


def test_compilation_has_the_cores_of_a_rank_though_torch_is_imported_unless_the_user_chose(monkeypatch):
    from torch._inductor import config

    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(48)))
    threads = config.compile_threads
    try:
        monkeypatch.setattr(os, "environ", {"LOCAL_WORLD_SIZE": "4"})
        process_group.set_gpu_defaults()
        assert config.compile_threads == 12 and os.environ["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"
        chosen = {"TORCHINDUCTOR_COMPILE_THREADS": "3", "PYTORCH_CUDA_ALLOC_CONF": "backend:native"}
        monkeypatch.setattr(os, "environ", dict(chosen))
        process_group.set_gpu_defaults()
        assert config.compile_threads == 3 and os.environ == chosen
    finally:
        config.compile_threads = threads
