"""Numbers of a step brought to the host while the next step runs."""

import torch


class AsyncDeviceToHost:
    """Holds one row of numbers at a time: `put` starts the copy, `get` waits for it alone, not for later work."""

    def __init__(self, device):
        self._cuda = device.type == "cuda"
        self._host = self._event = None

    def put(self, row):
        """Start to copy a tensor [n]."""
        if not self._cuda:
            self._host = row.clone()
            return
        self._host = torch.empty(row.shape, dtype=row.dtype, pin_memory=True)
        self._host.copy_(row, non_blocking=True)
        self._event = torch.cuda.Event()
        self._event.record()

    def get(self):
        """The numbers as a list."""
        if self._event is not None:
            self._event.synchronize()
        return self._host.tolist()
