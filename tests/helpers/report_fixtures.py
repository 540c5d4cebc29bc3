"""Results for the report, without a training: two sources, a corpus, and runs with manifests, metrics and events."""

import json
import math

from stages import summarize
from stages.lib import manifest

SOURCES = ("code", "prose")
DIRECTORY = "0123456789abcdef"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write_data(root):
    """Write the lists of two sources and a corpus of them."""
    for source in SOURCES:
        identity = {
            "source": source,
            "recipe": {"kind": "text", "paths": ["x"]},
            "files": [{"name": "x", "bytes": 10**6}],
        }
        manifest.write(root / f"sources/{source}/list.json", "list", identity, {"code": "l1"})
    split = {"documents": 10, "tokens": 1000, "text_bytes": 4000, "shards": []}
    sources = {source: {"train": split, "validation": split} for source in SOURCES}
    identity = {"tokenizer": {"digest": "7" * 64}, "sources": sources, "outputs": {}}
    manifest.write(
        root / "tokens/main/manifest.json", "index", identity, {"code": "i1", "dropped": {"code": {"duplicate": 3}}}
    )


def write_run(root, name="base", steps=300, milestones=(100, 300), bits=2.5, sources=SOURCES, **more):
    """Write a run: metrics of each step, events with a restart at step 100, and its milestones, scored."""
    train = root / "runs" / name / "train" / DIRECTORY
    train.mkdir(parents=True)
    with open(train / "metrics.jsonl", "w") as file:
        file.writelines(json.dumps(entry) + "\n" for entry in entries_of(steps, sources))
    events = [("attempt", 0), ("start", 0), ("attempt", 100), ("resume", 100), ("finish", steps)]
    with open(train / "events.jsonl", "w") as file:
        file.writelines(
            json.dumps({"event": event, "step": at, "time": at, "world_size": 2}) + "\n" for event, at in events
        )
    for step in milestones:
        write_milestone(root, name, step, bits * (1 + 10 / step), **more)


def entries_of(steps, sources):
    """Yield the lines of metrics.jsonl."""
    for step in range(1, steps + 1):
        drawn = {source: number * step for source, number in zip(sources, (150, 106), strict=False)}
        yield {
            **{"step": step, "tokens": step * 256, "loss": 3 + 5 * math.exp(-step / 50), "grad_norm": 1.0},
            **{"learning_rate": 1e-3, "tokens_per_second": 1000.0 + step % 7, "mfu": 0.4, "samples": [step, step + 1]},
            **{"source_tokens": drawn, "source_epochs": dict.fromkeys(sources, 1.5), "time": step},
            **{"seconds": 1.0, "memory_mb": 2500},
        }
    yield {"step": steps, "tokens": steps * 256, "validation": {source: {"loss": 3.1} for source in sources}}


def write_milestone(root, name, step, bits, commit=COMMIT, code="p1", recipe=None):
    """Write the manifests of a model, its export and its scores. `recipe`: further keys of the model's."""
    run, corpus = root / "runs" / name, manifest.read(root / "tokens/main/manifest.json").digest
    recipe = {"model": {}, "weights": {"code": 1.0, "prose": 1.0}} | (recipe or {"name": name})
    identity = {
        "recipe": recipe,
        "corpus": corpus,
        "step": step,
        "samples": step * 4,
        "tokens": step * 256,
        "outputs": {},
    }
    mixture = [{"from_sample": 0, "slots": {"code": 2048, "prose": 2048}}]
    record = {"run_directory": f"../train/{DIRECTORY}", "data": {"mixture": mixture}, "code": code, "commit": commit}
    record["validation"] = {source: {"loss": 3.1, "loss_bits_per_byte": 1.55} for source in SOURCES}
    record |= {
        "started": "2026-11-25T01:02:03Z",
        "seconds": 90.0,
        "world_size": 2,
        "host": "node1",
        "versions": {"torch": "2.13.0"},
    }
    model = run / f"models/{step:08d}.json"
    manifest.write(model, "pretrain", identity, record)
    export = run / f"export/{step:08d}/manifest.json"
    identity = {"recipe": {}, "model": manifest.read(model).digest, "step": step, "tokens": step * 256, "outputs": {}}
    manifest.write(export, "convert", identity, {"parameters": 4_200_000, "code": "c1", "seconds": 5.0})
    scores = {
        "next_line": {"acc_mutual_info": {"value": 0.2 + 0.5 / bits, "stderr": 0.02, "n": 500}},
        "bits_per_byte_code": {"bits_per_byte": {"value": bits, "stderr": 0.05, "n": 90}},
    }
    readers = {"next_line": {"indent": {"value": 0.35, "stderr": 0.02, "n": 500}}}
    identity = {"recipe": {}, "corpus": corpus, "export": manifest.read(export).digest, "step": step, "outputs": {}}
    identity |= {"tokens": step * 256, "results": scores, "trivial": readers}
    manifest.write(run / f"eval/{step:08d}/validation.json", "evaluate", identity, {"code": "e1", "seconds": 7.0})


def summarized(root, *more):
    """Run summarize over all that is there; returns its exit code."""
    patterns = {
        "models": "runs/*/models/*.json",
        "exports": "runs/*/export/*/manifest.json",
        "evaluations": "runs/*/eval/*/*.json",
        "corpora": "tokens/*/manifest.json",
        "lists": "sources/*/list.json",
    }
    argv = [word for name, pattern in patterns.items() for word in (f"--{name}", *sorted(root.glob(pattern)))]
    argv += ["--scores", root / "scores.csv", "--figures", root / "figures", "--pages", root / "pages"]
    return summarize.main([str(word) for word in [*argv, "--output", root / "summary.json", *more]])
