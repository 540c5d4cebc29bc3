"""Text to shards of token ids: the stage tokenize beside a Megatron-style pool, datatrove, datasets.map and litdata.

    python -m benchmarks.tokenize --peers-python PEERS/bin/python   # about 25 minutes on 2 cores
    python -m benchmarks.tokenize --megabytes 2 --vocab-size 2000 --repeats 1   # a smoke test

All read the same jsonl (see benchmarks/texts.py) and write their own shards, with one process per core, in turns. CPU
time is that of all processes of a tokenizer, from start to end; tokens are those of ours, and all must give the same
ids, document by document. The peers may be installed in their own environment:

    python -m venv PEERS && PEERS/bin/pip install sentencepiece==0.2.3 tokenizers numpy torch datatrove[processing] \\
        datasets litdata orjson

A peer that is not installed is skipped, and listed in the JSON.
"""

import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import harness, texts

MODULES = {
    **{"megatron": ("sentencepiece",), "datatrove": ("datatrove", "tokenizers", "orjson")},
    **{"datasets": ("datasets", "sentencepiece"), "litdata": ("litdata", "sentencepiece")},
}
"""The packages that a peer imports."""

ENCODERS = ("gigatoken", "sentencepiece", "tokenizers")

ADOPT = 36  # PR_SET_CHILD_SUBREAPER: orphans of a peer's process pool become our children
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def prepare(arguments):
    """Make the texts, their list and a tokenizer by the stages; returns (paths, counts of the texts)."""
    paths, content = texts.build(arguments.work / "texts", arguments.megabytes, arguments.processes)
    recipe = {"kind": "jsonl", "paths": list(map(str, paths)), "validation": 0.001}
    outputs = {"list": arguments.work / "list.json", "train_tokenizer": arguments.work / "tokenizer" / "manifest.json"}
    harness.run_stage("list", "--name", "texts", "--recipe", json.dumps(recipe), "--output", outputs["list"])
    sample = {"vocab_size": arguments.vocab_size, "sample": {"texts": 1}, "sample_mb": 30}
    given = ("--lists", outputs["list"], "--recipe", json.dumps(sample), "--output", outputs["train_tokenizer"])
    harness.run_stage("train_tokenizer", *given, **ENVIRONMENT)
    return paths, content


def commands_of(way, paths, arguments, output):
    """Return the commands of a tokenizer, which run in parallel."""
    tokenizer = arguments.work / "tokenizer"
    if way == "caravan":
        given = ("--list", arguments.work / "list.json", "--tokenizer", tokenizer / "manifest.json")
        recipe = json.dumps({"parts": arguments.processes})
        return [
            [
                *harness.stage("tokenize", *given, "--recipe", recipe, "--part", part),
                *("--output", output / f"{part:05d}.json", "--log", output / f"{part:05d}.log"),
            ]
            for part in range(arguments.processes)
        ]
    words = (paths, tokenizer, output, arguments.processes)
    return [harness.command_of("tokenize_peers", way, *words, python=arguments.peers_python)]


def measured(commands, log):
    """Run commands in parallel until all their processes ended; returns {"seconds", "cpu_seconds", "peak_mb"}.

    `peak_mb`: of the largest process. Raises RuntimeError if a command failed.
    """
    begun, cpu_seconds, peak_mb = time.perf_counter(), 0.0, 0.0
    with open(log, "w") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT, "env": harness.environment(**ENVIRONMENT)}
        running = {subprocess.Popen([*map(str, command)], **streams).pid for command in commands}
    while True:
        try:
            pid, status, usage = os.wait4(-1, 0)
        except ChildProcessError:
            break
        cpu_seconds += usage.ru_utime + usage.ru_stime
        peak_mb = max(peak_mb, usage.ru_maxrss / 1024)
        if pid in running and status != 0:
            raise RuntimeError(f"a command exited with {os.waitstatus_to_exitcode(status)}: see {log}")
    return {"seconds": time.perf_counter() - begun, "cpu_seconds": cpu_seconds, "peak_mb": peak_mb}


def take_turns(ways, paths, arguments):
    """Let all tokenizers run in turns; returns (the turns, {tokenizer: digest of its shards})."""
    turns, digests = [], {}
    for repeat in range(arguments.repeats):
        turns.append({"load": os.getloadavg()[0]})
        for place in range(len(ways)):
            way = ways[(repeat + place) % len(ways)]
            output = arguments.work / "made" / way
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir(parents=True)
            took = measured(commands_of(way, paths, arguments, output), arguments.work / f"{way}.log")
            turns[-1][way] = took
            print(f"{way}: {took['seconds']:.1f} s, {took['cpu_seconds']:.1f} CPU-s, {took['peak_mb']:.0f} MB")
            if way not in digests:
                digests[way] = called(arguments, "digest", way, output)
            shutil.rmtree(output)
    return turns, digests


def called(arguments, function, way, *words):
    """Return the result of a function of benchmarks.tokenize_peers; a process of its own keeps this one small."""
    python = arguments.peers_python if way in MODULES else sys.executable
    return harness.call("tokenize_peers", function, way, *words, python=python, variables=ENVIRONMENT)


def copies(paths, work, repeats):
    """Return bytes per second of a copy of the texts in memory and in files: upper bounds of any tokenizer."""
    data = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    turns = []
    for _ in range(repeats):
        begun = time.perf_counter()
        data.copy()
        copied = time.perf_counter()
        for path in paths:
            shutil.copyfile(path, work / "copy")
            (work / "copy").unlink()
        ended = time.perf_counter()
        turns.append({"memory": len(data) / (copied - begun), "files": len(data) / (ended - copied)})
    return harness.medians(turns)


def main():
    """Measure all tokenizers, and write the JSON file."""
    parser = harness.parser_of(__doc__, "tokenize")
    parser.add_argument("--megabytes", type=float, default=330, help="megabytes of text; a machine may have less")
    parser.add_argument("--vocab-size", type=int, default=32000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("--work", type=Path, default=Path("results/benchmarks/tokenize"), help="scratch directory")
    parser.add_argument("--peers-python", default=sys.executable, help="the Python with the peers")
    arguments = parser.parse_args()
    arguments.work = arguments.work.absolute()
    ctypes.CDLL(None).prctl(ADOPT, 1)
    paths, content = prepare(arguments)
    packages = {name for names in MODULES.values() for name in names}
    there = harness.installed(MODULES, arguments.peers_python)
    ways = ["caravan", *there]
    turns, digests = take_turns(ways, paths, arguments)
    ours = digests["caravan"]
    for way, digest in digests.items():
        if (digest["documents"], digest["ids"]) != (content["documents"], ours["ids"]):
            raise AssertionError(f"{way} has other ids than caravan: {digest}, ours {ours}")
    figures = {
        "texts": content,
        "tokens": ours["tokens"],
        "vocab_size": arguments.vocab_size,
        "processes": arguments.processes,
        "peers": {
            "versions": harness.versions_of(arguments.peers_python, packages),
            "left_out": [peer for peer in MODULES if peer not in there],
        },
        "ratios": {
            way: harness.speeds(turns, way) | {"peak_mb": harness.ratio(turns, "caravan", way, "peak_mb")}
            for way in ways[1:]
        },
        "copies_bytes_per_second": copies(paths, arguments.work, arguments.repeats),
        "encoders": {
            name: called(arguments, "encoder", name, paths[0], arguments.work / "tokenizer") for name in ENCODERS
        },
        "turns": turns,
    }
    for name, encoder in figures["encoders"].items():
        print(f"{name} alone: {encoder['tokens'] / encoder['cpu_seconds'] / 1e6:.2f} M tokens per CPU-second")
    harness.print_ratios(figures["ratios"])
    harness.write(arguments.output, "tokenize", ["sentencepiece", "tokenizers", "gigatoken", "pyarrow"], figures)


if __name__ == "__main__":
    main()
