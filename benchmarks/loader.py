"""Tokens per CPU-second of the data loader, beside a copy of the same bytes and other libraries' loaders.

    python -m benchmarks.loader                # about 5 minutes on 2 cores
    python -m benchmarks.loader --tokens 300000 --turn 20000 --repeats 2    # seconds: a smoke test

Every reader is one process without workers that yields batches of rows of L + 1 tokens in random order, from a corpus
in the page cache. They take turns, so that other load on the machine slows all equally; the figure is the CPU time of a
process and its children. `memcpy` copies the bytes of the tokens in a shard (two per token) within memory; `file copy`
copies them from a shard to another file, in the kernel.

A peer that is not installed is skipped, and listed in the JSON. `pip install --target DIR --no-deps litdata
lightning-utilities boto3 botocore s3transfer jmespath tifffile obstore` and PYTHONPATH=DIR add litdata.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import harness

LENGTHS = (512, 4096)
BATCH = 1 << 18
"""Tokens per batch: those of a rank in a step."""

EOS, VOCABULARY = 2, 32000
WARM_UP = 1  # turns that are not counted: groups of documents are laid out, chunks are opened


def write_corpus(directory, tokens):
    """Write a corpus of random tokens in documents of lognormal length (mean 1,700), with its manifest."""
    from stages.lib import manifest
    from stages.lib.tokens import shards

    rng, writer = np.random.default_rng(0), shards.Writer(directory, "web", "uint16")
    for _ in range(4):
        documents, left = [], tokens // 4
        while left > 0:
            document = rng.integers(3, VOCABULARY, min(left, int(rng.lognormal(6.6, 1.3)) + 2), dtype=np.uint16)
            document[0], document[-1] = 1, EOS
            documents.append(document)
            left -= len(document)
        lengths = [len(document) for document in documents]
        writer.add(np.concatenate(documents), lengths, lengths)
    sources = {"web": {"train": {"shards": writer.finish()}}}
    manifest.write(
        directory / "manifest.json", "index", {"tokenizer": {"eos": EOS}, "dtype": "uint16", "sources": sources}, {}
    )


def stream_of(directory):
    """Return all tokens of the corpus, uint16."""
    from stages.lib.tokens.corpus import Corpus

    stream = Corpus(directory / "manifest.json").stream("web")
    return stream.read(0, len(stream))


def caravan(packing):
    """Return a reader of our samples, inputs and targets, in the order of training."""

    def read(directory, length):
        from stages.lib.tokens.corpus import Corpus
        from stages.lib.tokens.loader import Samples

        samples = Samples(Corpus(directory / "manifest.json"), {"web": 1.0}, length, 0, packing=packing)
        rows, first = max(1, BATCH // length), 0
        while True:
            yield samples.batch(np.arange(first, first + rows))[0].size
            first += rows

    return read


def memcpy(directory, length):
    """Copy the same bytes from array to array."""
    tokens = stream_of(directory)
    size = min(len(tokens), max(1, BATCH // length) * (length + 1))
    copied, at = np.empty(size, np.uint16), 0
    while True:
        np.copyto(copied, tokens[at : at + size])
        at = at + size if at + 2 * size <= len(tokens) else 0
        yield size


def file_copy(directory, length):
    """Copy the same bytes from file to file in the kernel."""
    size = max(1, BATCH // length) * (length + 1) * 2
    source = os.open(directory / "web-00000.arrow", os.O_RDONLY)
    with tempfile.TemporaryFile(dir=directory) as copied:
        at, whole = 0, os.fstat(source).st_size
        while True:
            os.lseek(copied.fileno(), 0, os.SEEK_SET)
            done = os.copy_file_range(source, copied.fileno(), min(size, whole - at), at)
            at = (at + done) % whole
            yield done // 2


def memmap(directory, length):
    """Read with torch's DataLoader over np.memmap, one random row per item, as nanoGPT reads its train.bin."""
    import torch
    from torch.utils.data import DataLoader, Dataset

    path = directory / "train.bin"
    if not path.exists():
        stream_of(directory).tofile(path)

    class Rows(Dataset):
        tokens = np.memmap(path, dtype=np.uint16, mode="r")

        def __len__(self):
            return (len(self.tokens) - 1) // length

        def __getitem__(self, row):
            ids = torch.from_numpy(self.tokens[row * length : row * length + length + 1].astype(np.int64))
            return ids[:-1], ids[1:]

    while True:
        for inputs, _ in DataLoader(Rows(), batch_size=max(1, BATCH // length), shuffle=True):
            yield inputs.numel()


def datasets(directory, length):
    """Read with Hugging Face datasets: random rows of an Arrow table as numpy arrays."""
    import datasets as library
    import pyarrow as pa

    path = directory / f"datasets-{length}"
    if not path.exists():
        tokens = stream_of(directory)
        rows = (len(tokens) - 1) // length
        cut = np.concatenate([tokens[row * length : row * length + length + 1] for row in range(rows)])
        column = pa.FixedSizeListArray.from_arrays(pa.array(cut), length + 1)
        library.Dataset(pa.table({"tokens": column})).save_to_disk(path)
    rows, rng = library.load_from_disk(path).with_format("numpy"), np.random.default_rng(0)
    number = max(1, BATCH // length)
    while True:
        order = rng.permutation(len(rows))
        for first in range(0, len(order), number):
            ids = rows[order[first : first + number]]["tokens"]
            yield ids[:, :-1].size


def litdata(directory, length):
    """Read with litdata's StreamingDataset and TokensLoader, shuffled, in batches of its StreamingDataLoader."""
    from litdata import StreamingDataLoader, StreamingDataset, TokensLoader

    path = directory / f"litdata-{length}"
    if not path.exists():
        from litdata.streaming.writer import BinaryWriter

        tokens = stream_of(directory)
        chunk = max(1, min(16 << 20, len(tokens) // 4) // (length + 1)) * (length + 1)
        writer = BinaryWriter(path, chunk_size=chunk, item_loader=TokensLoader(length + 1))
        import torch

        for number, first in enumerate(range(0, len(tokens), length + 1)):
            writer[number] = torch.from_numpy(tokens[first : first + length + 1].astype(np.int32))
        writer.done()
        writer.merge()
    rows = StreamingDataset(str(path), item_loader=TokensLoader(length + 1), shuffle=True, drop_last=True)
    while True:
        for ids in StreamingDataLoader(rows, batch_size=max(1, BATCH // length), num_workers=0):
            yield ids[:, :-1].numel()


READERS = {
    "caravan chunk": ([], caravan("chunk")),
    "caravan concat": ([], caravan("concat")),
    "caravan best_fit": ([], caravan("best_fit")),
    "memcpy": ([], memcpy),
    "file copy": ([], file_copy),
    "torch memmap": (["torch"], memmap),
    "datasets": (["datasets"], datasets),
    "litdata": (["litdata"], litdata),
}
"""Packages and reader of each name; a reader yields the number of tokens of each batch."""


def take_turns_alone(reader, directory, length, turn):
    """Read batches of at least `turn` tokens per line of stdin, and print their time as a line of JSON."""
    batches = READERS[reader][1](Path(directory), length)
    for _ in sys.stdin:
        begun, used, tokens = time.perf_counter(), harness.cpu_seconds(), 0
        while tokens < turn:
            tokens += next(batches)
        took = {"tokens": tokens, "seconds": time.perf_counter() - begun, "cpu_seconds": harness.cpu_seconds() - used}
        print(json.dumps(took), flush=True)


def measure(readers, directory, length, arguments):
    """Return the turns at a length: million tokens per CPU-second of each reader."""
    words = [directory, length, arguments.turn]
    commands = {reader: harness.command_of("loader", "take_turns_alone", reader, *words) for reader in readers}
    turns, _ = harness.take_turns(commands, arguments.repeats, WARM_UP)
    return [
        {"length": length, "load": turn["load"]}
        | {reader: turn[reader]["tokens"] / max(turn[reader]["cpu_seconds"], 1e-9) for reader in readers}
        for turn in turns
    ]


def summary(turns, readers):
    """Return {length: {reader: {"tokens_per_cpu_second", "of_memcpy"}}}, medians over the turns."""
    figures = {length: [] for length in LENGTHS}
    for turn in turns:
        figures[turn["length"]].append(
            {
                reader: {"tokens_per_cpu_second": turn[reader], "of_memcpy": turn[reader] / turn["memcpy"]}
                for reader in readers
            }
        )
    return {length: harness.medians(of_length) for length, of_length in figures.items()}


def main():
    """Measure all readers, and write the JSON file."""
    parser = harness.parser_of(__doc__, "loader")
    parser.add_argument("--tokens", type=int, default=100_000_000, help="size of the corpus")
    parser.add_argument("--turn", type=int, default=8 << 20, help="tokens per turn of a reader")
    parser.add_argument("--repeats", type=int, default=11, help="turns per reader that are counted")
    parser.add_argument("--directory", type=Path, help="directory of the corpus (default: a temporary directory)")
    parser.add_argument("--readers", nargs="+", choices=READERS, default=list(READERS), help="must contain memcpy")
    arguments = parser.parse_args()
    readers = harness.installed({reader: READERS[reader][0] for reader in arguments.readers})
    with tempfile.TemporaryDirectory(dir=arguments.directory) as scratch:
        write_corpus(Path(scratch), arguments.tokens)
        turns = [turn for length in LENGTHS for turn in measure(readers, scratch, length, arguments)]
    figures = summary(turns, readers)
    for length, of_length in figures.items():
        for reader, figure in of_length.items():
            speed, share = figure["tokens_per_cpu_second"] / 1e6, 1 / figure["of_memcpy"]
            print(f"L={length:<5} {reader:20} {speed:8.1f} million tokens per CPU-second, 1/{share:.1f} of memcpy")
    packages = sorted({"numpy"}.union(*(READERS[reader][0] for reader in readers)))
    sizes = {"tokens": arguments.tokens, "turn": arguments.turn, "batch": BATCH}
    sizes["missing"] = sorted(set(arguments.readers) - set(readers))
    harness.write(arguments.output, "loader", packages, sizes | {"figures": figures, "turns": turns})


if __name__ == "__main__":
    main()
