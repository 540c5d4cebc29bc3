"""Conversion of a checkpoint: seconds of writing beside a copy of the same bytes, of the parity check, and peak memory.

    python -m benchmarks.convert                           # 0.6 G parameters; 15 minutes on 2 cores, 12 GB of disk
    python -m benchmarks.convert --shape tiny --repeats 1  # a smoke test

Tokenizer and corpus are made of the text that is on the machine, and a checkpoint of random weights for each of two
depths: memory is flat in the number of layers if both have the same peak. `stages.convert` runs in a process of its
own; in the same turn its weights are copied. Both times end when the files are on the disk. Imports are in no time.
"""

import json
import os
import shutil
import time
from pathlib import Path

from benchmarks import harness, texts
from stages.lib import manifest

STEP = 1
SHAPES = {
    "tiny": {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128},
    "0.6B": {
        **{"num_hidden_layers": 24, "hidden_size": 1280, "num_attention_heads": 20, "num_key_value_heads": 10},
        "intermediate_size": 4480,
    },
}


def write_corpus(work, megabytes, vocab_size):
    """Make tokenizer and corpus by their stages; return the path of the corpus' manifest."""
    (path,), _ = texts.build(work / "texts", megabytes, 1)
    if (corpus := work / "tokens/manifest.json").exists():
        return corpus
    source = {"kind": "jsonl", "paths": [str(path)], "validation": 0.1}
    return harness.make_corpus(work, "texts", source, {"vocab_size": vocab_size, "sample_mb": megabytes})


def write_checkpoint(directory, shape, corpus):
    """Write a checkpoint of random weights, and its manifest, model.json."""
    import torch

    from stages.lib.checkpoints import dcp
    from stages.lib.checkpoints.commit import directory_of
    from stages.lib.distributed.process_group import process_group
    from stages.lib.model.architectures import LlamaRecipe
    from stages.lib.model.transformer import Transformer

    directory, corpus = Path(directory), manifest.read(Path(corpus))
    facts = corpus.identity["tokenizer"]
    torch.manual_seed(0)
    model = Transformer(LlamaRecipe(**shape), facts["vocab_size"])
    with torch.no_grad():
        for weight in model.parameters():
            weight.normal_(1.0, 0.1) if weight.dim() == 1 else weight.normal_(0.0, shape["hidden_size"] ** -0.5)
    at = directory_of(directory / "train", STEP)
    with process_group():
        dcp.save(at, {"model": model.state_dict()}, {"step": STEP})
    identity = {
        "recipe": {"model": shape, "seq_len": 4096},
        **{"corpus": corpus.digest, "tokenizer": facts["digest"], "step": STEP, "samples": 1, "tokens": 4096},
        "checkpoint": str(at.relative_to(directory)),
        "outputs": {str(path.relative_to(directory)): manifest.describe(path) for path in sorted(at.iterdir())},
    }
    record = {"horizon": {"steps": STEP}, "run_directory": "train", "code": None}
    manifest.write(directory / "model.json", "pretrain", identity, record)


def convert_in_phases(directory, corpus):
    """Run stages.convert in this process, and write the seconds of its phases to phases.json."""
    directory, corpus = Path(directory), Path(corpus)
    from transformers import LlamaForCausalLM  # noqa: F401

    from stages import convert
    from stages.lib.checkpoints import dcp  # noqa: F401

    phases = {}

    def timed(name, phase):
        function = getattr(convert, name)

        def call(*arguments):
            began = time.perf_counter(), time.process_time()
            result = function(*arguments)
            if phase == "writing":
                sync(arguments[0].glob("*.safetensors"))
            phases[phase] = time.perf_counter() - began[0]
            phases[f"{phase}_cpu"] = time.process_time() - began[1]
            return result

        setattr(convert, name, call)

    timed("write_export", "writing")
    timed("check_parity", "parity")
    inputs = ("--model", directory / "model.json", "--corpus", corpus)
    inputs += ("--tokenizer", corpus.parents[1] / "tokenizer" / "manifest.json")
    if convert.main([*map(str, inputs), "--output", str(directory / "export" / "manifest.json")]):
        raise SystemExit(1)
    (directory / "phases.json").write_text(json.dumps(phases))


def sync(paths):
    """Wait until files are on the disk."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())


def turn(directory, corpus):
    """Convert in a process of its own, and copy the weights of the export; returns the figures."""
    output = directory / "export" / "manifest.json"
    shutil.rmtree(output.parent, ignore_errors=True)
    took = harness.timed(harness.command_of("convert", "convert_in_phases", directory, corpus))
    figures = {"seconds": took["seconds"], "peak_mb": took["peak_bytes"] / 2**20}
    figures |= json.loads((directory / "phases.json").read_text())
    result = manifest.read(output)
    weights = [result.output(name) for name in result.identity["outputs"] if name.endswith(".safetensors")]
    began = time.perf_counter(), time.process_time()
    for number, path in enumerate(weights):
        shutil.copyfile(path, directory / f"copy{number}")
    sync(directory.glob("copy*"))
    figures |= {"copy": time.perf_counter() - began[0], "copy_cpu": time.process_time() - began[1]}
    for path in directory.glob("copy*"):
        path.unlink()
    parity = json.loads((output.parent / "parity.json").read_text())
    size = sum(path.stat().st_size for path in weights)
    return figures | {"export_bytes": size, "parameters": result.record["parameters"], "checks": parity["checks"]}


def main():
    """Measure, and write the JSON file."""
    parser = harness.parser_of(__doc__, "convert")
    parser.add_argument("--shape", choices=SHAPES, default="0.6B")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--work", type=Path, default=Path("/tmp/caravan-convert"), help="directory that is kept")
    arguments = parser.parse_args()
    shape = SHAPES[arguments.shape]
    megabytes, vocab_size = (1, 600) if arguments.shape == "tiny" else (12, 32000)
    corpus = write_corpus(arguments.work, megabytes, vocab_size)
    turns = {}
    for layers in (shape["num_hidden_layers"], shape["num_hidden_layers"] // 2):
        directory = arguments.work / f"{arguments.shape}-{layers}"
        if not (directory / "model.json").exists():
            harness.call("convert", "write_checkpoint", directory, shape | {"num_hidden_layers": layers}, corpus)
        turns[layers] = [turn(directory, corpus) for _ in range(arguments.repeats)]
    medians = {layers: harness.medians(of_depth) for layers, of_depth in turns.items()}
    deep, shallow = medians.values()
    figures = {
        "parameters": deep["parameters"],
        "writing_to_copy": deep["writing"] / deep["copy"],
        "writing_to_copy_cpu": deep["writing_cpu"] / deep["copy_cpu"],
        "parity_to_writing": deep["parity"] / deep["writing"],
        "parity_to_writing_cpu": deep["parity_cpu"] / deep["writing_cpu"],
        "peak_mb": {layers: found["peak_mb"] for layers, found in medians.items()},
        "peak_of_depths": deep["peak_mb"] / shallow["peak_mb"],
        "medians": medians,
        "turns": turns,
    }
    for name in [name for name in figures if name not in ("medians", "turns")]:
        print(f"{name}: {figures[name]}")
    harness.write(arguments.output, "convert", ("torch", "transformers", "safetensors"), figures)


if __name__ == "__main__":
    main()
