"""Other tokenizers from jsonl to shards of token ids, each as its own documentation shows.

benchmarks.tokenize calls them in the environment of the peers. Every document ends with EOS.
"""

import hashlib
import itertools
import json
import multiprocessing
import struct
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
    encoder, output = Megatron(f"{tokenizer}/tokenizer.model"), Path(output)
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

    reader = JsonlReader(str(Path(texts[0]).parent), glob_pattern="*.jsonl")
    writer = DocumentTokenizer(f"{output}/tokens", f"{tokenizer}/tokenizer.json", eos_token="</s>", seed=0)
    LocalPipelineExecutor([reader, writer], len(texts), processes, logging_dir=f"{output}/logs").run()


def datasets(texts, tokenizer, output, processes):
    """Run datasets.map in batches with SentencePiece, and save the result."""
    import datasets as library
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=f"{tokenizer}/tokenizer.model")

    def encode(batch):
        return {"ids": [[*ids, EOS] for ids in processor.encode(batch["text"])]}

    features = library.Features({"ids": library.List(library.Value("uint16"))})
    found = library.load_dataset("json", data_files=texts, split="train", cache_dir=f"{output}/cache")
    options = {"batched": True, "batch_size": BATCH, "remove_columns": ["text"], "features": features}
    found.map(encode, num_proc=processes, **options).save_to_disk(f"{output}/tokens")


def litdata(texts, tokenizer, output, processes):
    """Run litdata.optimize with one item per document and one file per worker."""
    import functools

    from litdata import TokensLoader, optimize

    optimize(
        fn=functools.partial(_documents_of, f"{tokenizer}/tokenizer.model"),
        inputs=texts,
        output_dir=f"{output}/tokens",
        chunk_size=1 << 23,
        item_loader=TokensLoader(),
        num_workers=processes,
    )


def _documents_of(model, path):
    import sentencepiece
    import torch

    processor = sentencepiece.SentencePieceProcessor(model_file=model)
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            ids = processor.encode(json.loads(line)["text"], return_type="numpy")
            yield torch.from_numpy(np.append(ids, EOS).astype(np.uint16))


def encoder(library, path, tokenizer):
    """Encode a file with one library in this process; return {"tokens", "cpu_seconds"} of the encoding alone."""
    import time

    import orjson

    from stages.lib.tokenizer import fast
    from stages.lib.tokenizer.tokenizer import Tokenizer, package_encoder

    ours = Tokenizer(Path(tokenizer, "manifest.json"))
    ways = {"gigatoken": fast.Encoder(ours).encode, "sentencepiece": ours.encode}
    encode = package_encoder(ours.package) if library == "tokenizers" else ways[library]
    tokens, used = 0, 0.0
    with open(path, "rb") as file:
        while lines := list(itertools.islice(file, 100)):
            batch = [orjson.loads(line)["text"] for line in lines]
            begun = time.process_time()
            tokens += sum(map(len, encode(batch)))
            used += time.process_time() - begun
    return {"tokens": tokens, "cpu_seconds": used}


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
    for ids in ids_of(peer, Path(output)):
        tokens += len(ids)
        begin = 0
        for end in np.flatnonzero(ids == EOS).tolist():
            document = ids[begin + (ids[begin] == BOS) : end]
            hashes.append(hashlib.blake2b(document.tobytes(), digest_size=16).digest())
            begin = end + 1
    every = hashlib.sha256(b"".join(sorted(hashes))).hexdigest()
    return {"documents": len(hashes), "tokens": tokens, "ids": every}
