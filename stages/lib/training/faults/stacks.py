"""What a rank was doing when its training hung: the stacks of its threads, and the collectives that torch recorded.

hang/20270131T101500Z-rank3.txt    what each thread of rank 3 was doing
hang/20270131T101500Z-nccl-rank3   the last collectives of rank 3, where NCCL's flight recorder is on; to compare
                                   the ranks: torchfrtrace hang -p 20270131T101500Z-nccl-rank
"""

import faulthandler
import pickle
import sys
import threading

import torch

RECORDERS = {"nccl": "_dump_nccl_trace", "gloo": "_dump_fr_trace"}  # the former is in builds for GPUs only
RECORDER_SECONDS = 5.0  # a hanging NCCL may hang its recorder too


def pattern(directory, stamp):
    """The path of the stacks of all ranks of one hang, with a * for the rank."""
    return directory / "hang" / f"{stamp}-rank*.txt"


def write(directory, stamp, rank, head):
    """Write `head`, the names of all threads and their stacks, and the collectives; to stderr where no file can be."""
    path = directory / "hang" / f"{stamp}-rank{rank}.txt"
    head += "\n\n" + "".join(f"0x{thread.ident:016x} {thread.name}\n" for thread in threading.enumerate())
    try:
        path.parent.mkdir(exist_ok=True)
        recording = threading.Thread(target=_write_recorded, args=(path.parent, stamp, rank), daemon=True)
        recording.start()
        recording.join(RECORDER_SECONDS)
        with open(path.with_suffix(".writing"), "w", encoding="utf-8") as file:
            print(head, file=file, flush=True)
            faulthandler.dump_traceback(file, all_threads=True)
        path.with_suffix(".writing").rename(path)  # whole when the others see it
    except OSError as error:
        print(f"{path} could not be written: {error.strerror}\n{head}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(2, all_threads=True)


def _write_recorded(directory, stamp, rank):
    for backend, function in RECORDERS.items():
        dump = getattr(torch._C._distributed_c10d, function, None)
        content = dump() if dump else None
        if content and pickle.loads(content)["entries"]:
            (directory / f"{stamp}-{backend}-rank{rank}").write_bytes(content)
