"""Tensors stand in the file as they were rounded, whatever their sizes, and a write that fails is reported."""

import pytest
import torch

from stages.lib.huggingface import export
from stages.lib.huggingface.export import RoundingWriter


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_file_holds_the_rounded_tensors(tmp_path, monkeypatch, dtype):
    monkeypatch.setattr(export, "PART_BYTES", 64)
    threads = torch.get_num_threads()
    tensors = [torch.randn(7, 13), torch.randn(5), torch.randn(0), torch.randn(6, 4).T]
    expected, position = b"head", 4
    with open(tmp_path / "file", "wb") as file, RoundingWriter(file) as rounding:
        file.write(b"head")
        for tensor in tensors:
            rounding.write(position, tensor, dtype)
            position += tensor.numel() * dtype.itemsize
            expected += tensor.to(dtype).contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    assert (tmp_path / "file").read_bytes() == expected
    assert torch.get_num_threads() == threads


def test_failed_write_is_raised(monkeypatch):
    monkeypatch.setattr(export, "PART_BYTES", 64)
    with pytest.raises(OSError, match="No space left"), open("/dev/full", "wb") as file:  # noqa: PT012, SIM117
        with RoundingWriter(file) as rounding:
            rounding.write(0, torch.zeros(100), torch.float32)


def test_error_of_the_caller_is_not_hidden(tmp_path):
    with pytest.raises(KeyError), open(tmp_path / "file", "wb") as file, RoundingWriter(file) as rounding:  # noqa: PT012
        rounding.write(0, torch.zeros(100), torch.float32)
        raise KeyError
