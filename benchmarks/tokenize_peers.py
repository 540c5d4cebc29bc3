"""Other tokenizers from jsonl to shards of token ids, each as its own documentation shows.

    python -m benchmarks.tokenize_peers PEER TEXTS... --tokenizer DIRECTORY --output DIRECTORY --processes 2

writes a peer's shards; with --digest, it prints their digest as a line of JSON. Every document ends with EOS.
"""

import argparse
import hashlib
import itertools
import json
import multiprocessing
import struct
import sys
from pathlib import Path

import numpy as np

BOS, EOS = 1, 2
BATCH = 1000  # documents per call, for peers that encode batches


class Megatron:
    """Megatron-LM's tools/preprocess_data.py, reimplemented: a pool encodes lines, and one process writes the ids."""

    def __init__(self, model):
        self.model = model

    def start(self):
        """Load the tokenizer, in each process of the pool."""
        import sentencepiece

        Megatron.processor = sentencepiece.SentencePieceProcessor(model_file=self.model)

    def encode(self, line):
        """Return the ids of a line of jsonl."""
        return [*Megatron.processor.encode(json.loads(line)["text"]), EOS]


def megatron(texts, tokenizer, output, processes):
    """Write tokens.bin, and tokens.idx with the lengths and offsets of the documents."""
    encoder = Megatron(str(tokenizer / "tokenizer.model"))
    sizes = []
    with multiprocessing.Pool(processes, initializer=encoder.start) as pool, open(output / "tokens.bin", "wb") as file:
        for path in texts:
            with open(path, encoding="utf-8") as lines:
                for ids in pool.imap(encoder.encode, lines, 32):
                    file.write(np.array(ids, np.uint16).tobytes())
                    sizes.append(len(ids))
        pool.close()
        pool.join()
    with open(output / "tokens.idx", "wb") as file:
        file.write(b"MMIDIDX\x00\x00" + struct.pack("<QBQQ", 1, 8, len(sizes), len(sizes) + 1))
        file.write(np.array(sizes, np.int32).tobytes())
        file.write((np.cumsum([0, *sizes[:-1]], dtype=np.int64) * 2).tobytes())
        file.write(np.arange(len(sizes) + 1, dtype=np.int64).tobytes())


def datatrove(texts, tokenizer, output, processes):
    """Run a JsonlReader and a DocumentTokenizer, one task per file."""
    from datatrove.executor import LocalPipelineExecutor
    from datatrove.pipeline.readers import JsonlReader
    from datatrove.pipeline.tokens import DocumentTokenizer

    reader = JsonlReader(str(texts[0].parent), glob_pattern="*.jsonl")
    writer = DocumentTokenizer(str(output / "tokens"), str(tokenizer / "tokenizer.json"), eos_token="</s>", seed=0)
    LocalPipelineExecutor([reader, writer], len(texts), processes, logging_dir=str(output / "logs")).run()


def datasets(texts, tokenizer, output, processes):
    """Run datasets.map in batches with SentencePiece, and save the result."""
    import datasets as library
    import sentencepiece

    model = str(tokenizer / "tokenizer.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=model)

    def encode(batch):
        return {"ids": [[*ids, EOS] for ids in processor.encode(batch["text"])]}

    features = library.Features({"ids": library.List(library.Value("uint16"))})
    found = library.load_dataset("json", data_files=list(map(str, texts)), split="train", cache_dir=output / "cache")
    options = {"batched": True, "batch_size": BATCH, "remove_columns": ["text"], "features": features}
    found.map(encode, num_proc=processes, **options).save_to_disk(output / "tokens")


def litdata(texts, tokenizer, output, processes):
    """Run litdata.optimize with one item per document and one file per worker."""
    import functools

    from litdata import TokensLoader, optimize

    optimize(
        fn=functools.partial(_documents_of, tokenizer / "tokenizer.model"),
        inputs=list(map(str, texts)),
        output_dir=str(output / "tokens"),
        chunk_size=1 << 23,
        item_loader=TokensLoader(),
        num_workers=processes,
    )


def _documents_of(model, path):
    import sentencepiece
    import torch

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            ids = processor.encode(json.loads(line)["text"], return_type="numpy")
            yield torch.from_numpy(np.append(ids, EOS).astype(np.uint16))


def encoder(library, texts, tokenizer):
    """Encode with one library in this process, and print {"tokens", "cpu_seconds"} of the encoding alone."""
    import time

    import orjson

    from stages.lib.tokenizer import fast
    from stages.lib.tokenizer.tokenizer import Tokenizer, package_encoder

    ours = Tokenizer(tokenizer / "manifest.json")
    ways = {"gigatoken": fast.Encoder(ours).encode, "sentencepiece": ours.encode}
    encode = package_encoder(ours.package) if library == "tokenizers" else ways[library]
    tokens, used = 0, 0.0
    for path in texts:
        with open(path, "rb") as file:
            while lines := list(itertools.islice(file, 100)):
                batch = [orjson.loads(line)["text"] for line in lines]
                begun = time.process_time()
                tokens += sum(map(len, encode(batch)))
                used += time.process_time() - begun
    print(json.dumps({"tokens": tokens, "cpu_seconds": used}))


def ids_of(peer, output):
    """Yield arrays of the ids in a peer's shards."""
    if peer == "megatron":
        yield np.fromfile(output / "tokens.bin", np.uint16)
    elif peer == "datatrove":
        for path in sorted(output.glob("tokens/*_shuffled.ds")):
            yield np.fromfile(path, np.uint16)
    elif peer == "datasets":
        import datasets as library

        for chunk in library.load_from_disk(output / "tokens").data.column("ids").chunks:
            yield chunk.flatten().to_numpy()
    elif peer == "litdata":
        for path in sorted(output.glob("tokens/*.bin")):
            data = path.read_bytes()
            items = int(np.frombuffer(data, np.uint32, 1)[0])
            yield np.frombuffer(data[4 * (items + 2) :], np.uint16)
    else:
        import pyarrow

        for path in sorted(output.glob("*/*.arrow")):
            with pyarrow.memory_map(str(path)) as file, pyarrow.ipc.open_file(file) as reader:
                for number in range(reader.num_record_batches):
                    yield reader.get_batch(number).column("tokens").flatten().to_numpy()


def digest(peer, output):
    """Return {"documents", "tokens", "ids"} of a peer's shards: `ids` is a hash of all documents' ids in any order."""
    hashes, tokens = [], 0
    for ids in ids_of(peer, output):
        tokens += len(ids)
        begin = 0
        for end in np.flatnonzero(ids == EOS).tolist():
            document = ids[begin + (ids[begin] == BOS) : end]
            hashes.append(hashlib.blake2b(document.tobytes(), digest_size=16).digest())
            begin = end + 1
    every = hashlib.sha256(b"".join(sorted(hashes))).hexdigest()
    return {"documents": len(hashes), "tokens": tokens, "ids": every}


PEERS = {"megatron": megatron, "datatrove": datatrove, "datasets": datasets, "litdata": litdata}
ENCODERS = ("gigatoken", "sentencepiece", "tokenizers")


def main():
    """Write or read the shards of one peer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("peer", choices=[*PEERS, *ENCODERS, "caravan"])
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--digest", action="store_true")
    parser.add_argument("texts", type=Path, nargs="*")
    arguments = parser.parse_args()
    if arguments.digest:
        print(json.dumps(digest(arguments.peer, arguments.output)))
    elif arguments.peer in ENCODERS:
        encoder(arguments.peer, arguments.texts, arguments.tokenizer)
    else:
        PEERS[arguments.peer](arguments.texts, arguments.tokenizer, arguments.output, arguments.processes)


if __name__ == "__main__":
    # a peer's processes import this module again, by its own name and not as __main__
    sys.modules["benchmarks.tokenize_peers"] = sys.modules["__main__"]
    main()
