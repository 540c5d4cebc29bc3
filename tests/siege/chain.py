"""The stages under attack: from a few texts to a summary of scores, with paths relative to one directory."""

import contextlib
import importlib
import json
from dataclasses import dataclass

from stages.lib import manifest
from stages.lib.tokens.corpus import BYTES_OF_IDS
from tests.helpers import training
from tests.helpers.contamination_fixtures import write_items
from tests.helpers.data_fixtures import SOURCES, texts, write_jsonl

RECIPE = training.RECIPE | {"global_batch_size": 4, "schedule": {"warmup_steps": 1}}
OPERATION = training.OPERATION | {
    "steps": 6,
    "checkpoint": {"every": 2, "keep": 1},
    "validation": {"every": 3, "tokens": 320},
}
PATHS = {
    "lists": [f"results/sources/{source}/list.json" for source in SOURCES],
    "hashes": [f"results/hashes/{source}/00000.json" for source in SOURCES],
    "duplicates": "results/hashes/duplicates.json",
    "sketches": [f"results/sketches/{source}/00000.json" for source in SOURCES],
    "candidates": "results/near/candidates.json",
    "copies": [f"results/near/{source}/00000.json" for source in SOURCES],
    "near_duplicates": "results/near/manifest.json",
    "parts": [f"results/tokens/main/{source}/00000.json" for source in SOURCES],
    "tokenizer": "results/tokenizers/main/manifest.json",
    "corpus": "results/tokens/main/manifest.json",
    "items": "texts/items.json",
    "overlaps": [f"results/overlaps/main/own/{source}/00000.json" for source in SOURCES],
    "contamination": "results/contamination/main/own.json",
    "model": "results/runs/tiny/models/00000006.json",
    "export": "results/runs/tiny/export/00000006/manifest.json",
    "scores": "results/runs/tiny/eval/00000006/validation.json",
    "card": "results/runs/tiny/export/00000006/card.json",
    "best": "results/sweeps/lr/best.json",
    "summary": "results/summary.json",
}
NOT_RESULTS = ("metrics.jsonl", "events.jsonl", "receipt.json", "*.yaml", "README.md", "card.json", "card.html")
"""Files that tell when or where something was made."""


@dataclass(frozen=True)
class Step:
    """One call of a stage: name, arguments, the paths that it makes, and number of ranks, 0 without a launcher."""

    stage: str
    arguments: tuple
    made: tuple
    ranks: int = 0

    def run(self):
        """Run the stage in this process and its working directory; return the exit code."""
        return importlib.import_module(f"stages.{self.stage}").main([*self.arguments, "--log", "log"])


def steps():
    """Return the calls of all stages, in order."""
    made = []
    for source, listed, hashes in zip(SOURCES, PATHS["lists"], PATHS["hashes"], strict=True):
        recipe = {"kind": "jsonl", "paths": [f"texts/{source}.jsonl"], "validation": 0.2}
        made.append(_step("list", ["--name", source, *_recipe(recipe)], listed))
        made.append(_step("hash_documents", ["--list", listed, "--part", "0", "--parts", "1"], hashes))
    made.append(
        _step(
            "train_tokenizer",
            ["--lists", *PATHS["lists"], *_recipe({"vocab_size": 320, "sample": {"a": 1, "b": 1}})],
            PATHS["tokenizer"],
        )
    )
    numbers = [hashes.replace(".json", ".duplicates.npy") for hashes in PATHS["hashes"]]
    made.append(_step("find_duplicates", ["--hashes", *PATHS["hashes"]], PATHS["duplicates"], *numbers))
    made += _near_duplicates_steps()
    for listed, part in zip(PATHS["lists"], PATHS["parts"], strict=True):
        given = ["--list", listed, "--tokenizer", PATHS["tokenizer"], "--part", "0"]
        given += ["--duplicates", PATHS["duplicates"], "--near-duplicates", PATHS["near_duplicates"]]
        made.append(_step("tokenize", [*given, *_recipe({"parts": 1, "duplicates": "drop"})], part))
    given = ["--tokenizer", PATHS["tokenizer"], "--parts", *PATHS["parts"]]
    beside = [f"results/tokens/main/{name}" for name in ("receipt.json", BYTES_OF_IDS)]
    made.append(_step("index", given, PATHS["corpus"], *beside))
    made += _contamination_steps()
    given = ["--corpus", PATHS["corpus"], "--until", "6", "--train-dir", "results/runs/tiny/train"]
    given += [*_recipe(RECIPE), "--operation", json.dumps(OPERATION)]
    made.append(_step("pretrain", given, PATHS["model"], "results/runs/tiny/train", ranks=2))
    given = ["--model", PATHS["model"], "--corpus", PATHS["corpus"], "--tokenizer", PATHS["tokenizer"]]
    made.append(_step("convert", [*given, *_recipe({"dtype": "float32"})], PATHS["export"]))
    given = ["--export", PATHS["export"], "--corpus", PATHS["corpus"]]
    made.append(_step("evaluate", [*given, *_recipe({"tasks": ["bits_per_byte"]})], PATHS["scores"]))
    given = ["--models", PATHS["model"], "--evaluations", PATHS["scores"]]
    made.append(_step("select_best", [*given, *_recipe({"metric": "bits_per_byte", "mode": "min"})], PATHS["best"]))
    given = ["--name", "tiny", "--model", PATHS["model"], "--export", PATHS["export"], "--corpus", PATHS["corpus"]]
    given += ["--lists", *PATHS["lists"], "--evaluations", PATHS["scores"]]
    made.append(_step("describe", given, PATHS["card"], PATHS["card"].replace("card.json", "README.md")))
    given = ["--models", PATHS["model"], "--exports", PATHS["export"], "--evaluations", PATHS["scores"]]
    given += ["--scores", "results/scores.csv", "--figures", "results/figures"]
    given += ["--corpora", PATHS["corpus"], "--lists", *PATHS["lists"]]
    more = ("results/scores.csv", "results/figures", "results/summary.txt", "results/card.html")
    made.append(_step("summarize", given, PATHS["summary"], *more))
    return made


def _near_duplicates_steps():
    """The search for near duplicates, after the exact ones."""
    part = ("--part", "0", "--parts", "1")
    made = [
        _step("sketch", ["--list", listed, *part], sketches)
        for listed, sketches in zip(PATHS["lists"], PATHS["sketches"], strict=True)
    ]
    beside = [
        "results/near/candidates.npy",
        *(copies.replace(".json", ".candidates.npy") for copies in PATHS["copies"]),
    ]
    made.append(_step("find_candidates", ["--sketches", *PATHS["sketches"]], PATHS["candidates"], *beside))
    for listed, copies in zip(PATHS["lists"], PATHS["copies"], strict=True):
        given = ["--candidates", PATHS["candidates"], "--list", listed, *part]
        made.append(_step("copy_candidates", given, copies))
    given = ["--candidates", PATHS["candidates"], "--copies", *PATHS["copies"], "--duplicates", PATHS["duplicates"]]
    numbers = [copies.replace(".json", ".near_duplicates.npy") for copies in PATHS["copies"]]
    made.append(_step("verify_duplicates", given, PATHS["near_duplicates"], "results/near/removed.arrow", *numbers))
    return made


def _contamination_steps():
    """The search for the items that `write_texts` writes; those of a suite of local tasks are none."""
    made = [
        _step("list_items", ["--suite", "local", *_recipe({"tasks": ["next_line"]})], "results/suites/local/items.json")
    ]
    for part, overlaps in zip(PATHS["parts"], PATHS["overlaps"], strict=True):
        given = ["--items", PATHS["items"], "--part", part, "--tokenizer", PATHS["tokenizer"]]
        made.append(_step("find_overlaps", given, overlaps))
    given = ["--corpus", PATHS["corpus"], "--items", PATHS["items"], "--overlaps", *PATHS["overlaps"]]
    return [*made, _step("find_contamination", given, PATHS["contamination"])]


def _recipe(recipe):
    return ["--recipe", json.dumps(recipe)]


def _step(stage, arguments, output, *more, ranks=0):
    return Step(stage, (*arguments, "--output", output), (output, *more), ranks)


def write_texts(directory):
    """Write what the chain begins with: raw texts, and a suite's items, of which the first stand in the texts."""
    for source in SOURCES:
        write_jsonl(directory / f"texts/{source}.jsonl", [{"text": text} for text in texts(source, 40)])
    write_items(directory / "texts/items.json", {"own": texts("a", 5) + texts("none of them", 5)})


def results_of(directory):
    """Return {relative path: digest} of all results: the identity of a manifest, the bytes of other files."""
    found = {}
    for path in sorted((directory / "results").rglob("*")):
        if path.is_file() and not any(path.match(pattern) for pattern in NOT_RESULTS):
            found[str(path.relative_to(directory))] = _digest(path)
    return found


def _digest(path):
    content = path.read_bytes()
    if path.suffix == ".json":
        with contextlib.suppress(ValueError, RecursionError, KeyError, TypeError):  # damaged
            return manifest.digest_of(json.loads(content)["identity"])
    return manifest.files.sha256_bytes(content)
