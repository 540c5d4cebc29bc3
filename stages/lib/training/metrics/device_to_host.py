"""Asynchronous copy of a step's numbers to the host, while the next step runs."""

from __future__ import annotations

import torch


class AsyncDeviceToHost:
    """Copies one row of numbers at a time. `wait` waits for the copy, not for later work of the device."""

    def __init__(self, device: torch.device) -> None:
        """`device`: where the rows are."""
        self._cuda = device.type == "cuda"
        self._host: torch.Tensor | None = None
        self._event: torch.cuda.Event | None = None

    def start(self, row: torch.Tensor) -> None:
        """Start to copy a tensor [n]."""
        if not self._cuda:
            self._host = row.clone()
            return
        self._host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
        self._host.copy_(row, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def wait(self) -> list[float]:
        """Return the numbers of the last `start`."""
        if self._event is not None:
            self._event.synchronize()
        assert self._host is not None, "start was not called"
        return self._host.tolist()
