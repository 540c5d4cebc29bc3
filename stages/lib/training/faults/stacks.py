"""Thread stacks and recorded collectives of a rank, written when its training hangs.

hang/20270131T101500Z-rank3.txt    the stacks of all threads of rank 3
hang/20270131T101500Z-nccl-rank3   the last collectives of rank 3, if NCCL's flight recorder is on; to compare the
                                   ranks: torchfrtrace hang -p 20270131T101500Z-nccl-rank
"""

from __future__ import annotations

import faulthandler
import pickle
import sys
import threading
from pathlib import Path

import torch

RECORDERS = {"nccl": "_dump_nccl_trace", "gloo": "_dump_fr_trace"}  # the former exists only in builds for GPUs
RECORDER_SECONDS = 10.0  # a hanging NCCL may block its recorder too; a first dump takes a second of an idle core


def pattern(directory: Path, stamp: str) -> Path:
    """Return the path of the stacks of one hang, with a * for the rank."""
    return directory / "hang" / f"{stamp}-rank*.txt"


def write(directory: Path, stamp: str, rank: int, head: str) -> None:
    """Write `head`, all threads' names and stacks, and the collectives; to stderr if no file can be written."""
    path = directory / "hang" / f"{stamp}-rank{rank}.txt"
    head += "\n\n" + "".join(f"0x{thread.ident:016x} {thread.name}\n" for thread in threading.enumerate())
    try:
        path.parent.mkdir(exist_ok=True)
        recording = threading.Thread(target=_write_collectives, args=(path.parent, stamp, rank), daemon=True)
        recording.start()
        recording.join(RECORDER_SECONDS)
        with open(path.with_suffix(".writing"), "w", encoding="utf-8") as file:
            print(head, file=file, flush=True)
            faulthandler.dump_traceback(file, all_threads=True)
        path.with_suffix(".writing").rename(path)  # complete when other ranks see it
    except OSError as error:
        print(f"{path} could not be written: {error.strerror}\n{head}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(2, all_threads=True)


def _write_collectives(directory: Path, stamp: str, rank: int) -> None:
    for backend, function in RECORDERS.items():
        dump = getattr(torch._C._distributed_c10d, function, None)
        content = dump() if dump else None
        if content and pickle.loads(content)["entries"]:
            (directory / f"{stamp}-{backend}-rank{rank}").write_bytes(content)
