"""Memory into which rows of tokens are read before their ids are widened."""

import numpy as np

SIZE = 1 << 18
"""Bytes of a scratch: it stays in the CPU cache between the read and the widening. A longer row is alone."""

ALIGNMENT = 64  # bytes: the kernel copies a row faster to the begin of a cache line


class RowScratch:
    """Rows of `width` tokens, used again for each read.

    `rows`: array [rows, width] of `dtype`. `vectors`: an argument of `os.preadv` per row, made once: to make it takes
    0.1 us, as long as to copy 512 tokens.
    """

    def __init__(self, width: int, dtype: np.dtype) -> None:
        self.width = width
        stride = -(-width * dtype.itemsize // ALIGNMENT) * ALIGNMENT
        number = max(1, SIZE // stride)
        memory = np.empty(number * stride + ALIGNMENT, np.uint8)
        begin = -memory.ctypes.data % ALIGNMENT
        padded = memory[begin : begin + number * stride].view(dtype).reshape(number, -1)
        self.rows = padded[:, :width]
        self.vectors = [(memoryview(row),) for row in self.rows]

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.vectors)
