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
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from benchmarks import harness, texts
from benchmarks.harness import HOME
from benchmarks.tokenize_peers import ENCODERS, PEERS

MODULES = {
    **{"megatron": ("sentencepiece",), "datatrove": ("datatrove", "tokenizers", "orjson")},
    **{"datasets": ("datasets", "sentencepiece"), "litdata": ("litdata", "sentencepiece")},
}
"""The packages that a peer imports."""

ADOPT = 36  # PR_SET_CHILD_SUBREAPER: orphans of a peer's process pool become our children
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(HOME)}


def prepare(arguments):
    """Make the texts, their list and a tokenizer by the stages; returns (paths, counts of the texts)."""
    paths, content = texts.build(arguments.work / "texts", arguments.megabytes, arguments.processes)
    recipe = {"kind": "jsonl", "paths": list(map(str, paths)), "validation": 0.001}
    outputs = {"list": arguments.work / "list.json", "train_tokenizer": arguments.work / "tokenizer" / "manifest.json"}
    run_stage("list", "--name", "texts", "--recipe", json.dumps(recipe), "--output", outputs["list"])
    sample = {"vocab_size": arguments.vocab_size, "sample": {"texts": 1}, "sample_mb": 30}
    given = ("--lists", outputs["list"], "--recipe", json.dumps(sample), "--output", outputs["train_tokenizer"])
    run_stage("train_tokenizer", *given)
    return paths, content


def run_stage(name, *arguments):
    """Run a stage to its end."""
    command = [sys.executable, "-m", f"stages.{name}", *map(str, arguments)]
    subprocess.run(command, env=os.environ | ENVIRONMENT, check=True, stdout=sys.stderr)


def commands_of(way, paths, arguments, output):
    """Return the commands of a tokenizer, which run in parallel."""
    tokenizer = arguments.work / "tokenizer"
    if way == "caravan":
        given = ("--list", arguments.work / "list.json", "--tokenizer", tokenizer / "manifest.json")
        recipe = json.dumps({"parts": arguments.processes})
        return [
            [
                *(sys.executable, "-m", "stages.tokenize", *given, "--recipe", recipe, "--part", str(part)),
                *("--output", output / f"{part:05d}.json", "--log", output / f"{part:05d}.log"),
            ]
            for part in range(arguments.processes)
        ]
    given = ("--tokenizer", tokenizer, "--output", output, "--processes", str(arguments.processes))
    return [[arguments.peers_python, "-m", "benchmarks.tokenize_peers", way, *paths, *given]]


def measured(commands, log):
    """Run commands in parallel until all their processes ended; returns {"seconds", "cpu_seconds", "peak_mb"}.

    `peak_mb`: of the largest process. Raises RuntimeError if a command failed.
    """
    begun, cpu_seconds, peak_mb = time.perf_counter(), 0.0, 0.0
    with open(log, "w") as file:
        streams = {"stdout": file, "stderr": subprocess.STDOUT, "env": os.environ | ENVIRONMENT}
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
                digests[way] = json_of(arguments, way, "--output", output, "--digest")
            shutil.rmtree(output)
    return turns, digests


def json_of(arguments, *command):
    """Return the JSON that benchmarks.tokenize_peers prints last; a process of its own keeps this one small."""
    python = arguments.peers_python if command[0] in PEERS else sys.executable
    return harness.last_json([python, "-m", "benchmarks.tokenize_peers", *command], env=os.environ | ENVIRONMENT)


def copies(paths, work, repeats):
    """Return bytes per second of a copy of the texts in memory and in files: upper bounds of any tokenizer."""
    data = np.concatenate([np.fromfile(path, np.uint8) for path in paths])
    speeds_by_place = {"memory": [], "files": []}
    for _ in range(repeats):
        begun = time.perf_counter()
        data.copy()
        speeds_by_place["memory"].append(len(data) / (time.perf_counter() - begun))
        begun = time.perf_counter()
        for path in paths:
            shutil.copyfile(path, work / "copy")
            (work / "copy").unlink()
        speeds_by_place["files"].append(len(data) / (time.perf_counter() - begun))
    return {name: statistics.median(speeds) for name, speeds in speeds_by_place.items()}


def versions_of(python, names):
    """Return {package: version} of the packages that are installed for this Python."""
    code = (
        "import importlib.metadata as m, json, sys\n"
        "print(json.dumps({d.metadata['Name'].lower(): d.version for d in m.distributions()}))"
    )
    every = harness.last_json([python, "-c", code])
    return {name: every[name] for name in names if name in every}


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
    named = versions_of(arguments.peers_python, sorted({name for names in MODULES.values() for name in names}))
    missing = [peer for peer in PEERS if not set(MODULES[peer]) <= set(named)]
    for peer in missing:
        print(f"{peer} is not installed: skipped")
    ways = ["caravan", *(peer for peer in PEERS if peer not in missing)]
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
        "peers": {"versions": named, "left_out": missing},
        "ratios": {
            way: harness.speeds(turns, way) | {"peak_mb": harness.ratio(turns, "caravan", way, "peak_mb")}
            for way in ways[1:]
        },
        "copies_bytes_per_second": copies(paths, arguments.work, arguments.repeats),
        "encoders": {
            name: json_of(arguments, name, paths[0], "--tokenizer", arguments.work / "tokenizer") for name in ENCODERS
        },
        "turns": turns,
    }
    for name, encoder in figures["encoders"].items():
        print(f"{name} alone: {encoder['tokens'] / encoder['cpu_seconds'] / 1e6:.2f} M tokens per CPU-second")
    harness.print_ratios(figures["ratios"])
    harness.write(arguments.output, "tokenize", ["sentencepiece", "tokenizers", "gigatoken", "pyarrow"], figures)


if __name__ == "__main__":
    main()
