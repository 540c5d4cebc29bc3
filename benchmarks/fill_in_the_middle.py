"""Fill-in-the-middle on and off: the loss of the middle of held-out code, the validation loss, and the loader's speed.

    python -m benchmarks.fill_in_the_middle                                  # 8 minutes of CPU time
    python -m benchmarks.fill_in_the_middle --seeds 0 --steps 3 --windows 8  # a smoke test

A corpus is made of the demo's source `code`, the standard library, by the stages. Models of about a million parameters
are trained on it, without and with `fill_in_the_middle: {}`, on the same samples with the same seeds. Held-out windows
of code are cut at two random tokens, and the loss of the middle is measured in bits per token after three contexts:

    prefix    the prefix alone, left to right
    psm       <prefix> prefix <suffix> suffix <middle>
    spm       <prefix> <suffix> suffix <middle> prefix

A model without fill-in-the-middle has never met the special tokens, so its own best context is the prefix. Differences
are paired by seed. A call that was cut off resumes with the training that it did not end.

Before the trainings, the loader reads the corpus with and without permutation, in turns: samples per CPU-second.
"""

import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks import harness

MODEL = {
    **{"num_hidden_layers": 2, "hidden_size": 128, "num_attention_heads": 4, "intermediate_size": 344},
    **{"tie_word_embeddings": True, "max_position_embeddings": 128},
}
SEQ_LEN, BATCH = 128, 16
CONTEXTS = ("prefix", "psm", "spm")
LOADER_LENGTHS, LOADER_TOKENS = (256, 2048), 1 << 18  # tokens per sample, and per batch


def corpus_of(directory):
    """Make the corpus; return its manifest's path."""
    tokenizer = {"vocab_size": 1024, "sample_mb": 4, "fill_in_the_middle": {}}
    return harness.make_corpus(directory, "code", {"kind": "python-code", "validation": 0.15}, tokenizer)


def loader_speed(corpus, turns):
    """Return {tokens per sample: {"off", "on": samples per CPU-second, "ratio": on over off}}, medians of the turns."""
    from stages.lib.tokens.fill_in_the_middle import FillInTheMiddleRecipe
    from stages.lib.tokens.loader import Samples

    speeds = {}
    for length in LOADER_LENGTHS:
        readers = {
            name: Samples(corpus, {"code": 1.0}, length, 0, fill_in_the_middle=recipe)
            for name, recipe in (("off", None), ("on", FillInTheMiddleRecipe()))
        }
        size, measured = LOADER_TOKENS // length, []
        for turn in range(-1, turns):  # the first, which opens the shard and fills the caches, does not count
            numbers = np.arange((turn + 1) * size, (turn + 2) * size)
            names = list(readers) if turn % 2 else list(reversed(readers))
            speed = dict.fromkeys(readers)
            for name in names:
                begun = time.process_time()
                readers[name].batch(numbers)
                speed[name] = size / (time.process_time() - begun)
            measured.append(speed | {"ratio": speed["on"] / speed["off"]})
        speeds[str(length)] = harness.medians(measured[1:])
    return speeds


def windows_of(corpus, count):
    """Return [(prefix, middle, suffix)] of held-out code: arrays of ids, drawn by a fixed seed, none empty."""
    stream, chance = corpus.stream("code", "validation"), np.random.default_rng(0)
    size, separators = SEQ_LEN - 3, (corpus.tokenizer["bos"], corpus.tokenizer["eos"])
    found = []
    while len(found) < count:
        begin = int(chance.integers(len(stream) - size))
        window = stream.read(begin, size)
        if not np.isin(window, separators).any():
            first, second = sorted(chance.choice(np.arange(1, size), 2, replace=False).tolist())
            found.append((window[:first], window[first:second], window[second:]))
    return found


def middle_losses(milestone, corpus, windows):
    """Return {context: bits per token of the middles} of a model."""
    import torch

    from stages.lib.checkpoints import find_model

    model = find_model.load(find_model.find(milestone), torch.float32, torch.device("cpu"))
    sentinels = corpus.tokenizer["fill_in_the_middle"]
    prefix_at, middle_at, suffix_at = ([sentinels[name]] for name in ("prefix", "middle", "suffix"))
    bits, tokens = dict.fromkeys(CONTEXTS, 0.0), 0
    with torch.no_grad():
        for prefix, middle, suffix in windows:
            contexts = {
                "prefix": [prefix],
                "psm": [prefix_at, prefix, suffix_at, suffix, middle_at],
                "spm": [prefix_at, suffix_at, suffix, middle_at, prefix],
            }
            tokens += len(middle)
            for name, context in contexts.items():
                ids = torch.from_numpy(np.concatenate([*context, middle]).astype(np.int64))[None]
                log_probs, _ = model.log_probs(ids[:, :-1], ids[:, 1:])
                bits[name] -= float(log_probs[0, -len(middle) :].double().sum()) / np.log(2)
    return {name: total / tokens for name, total in bits.items()}


def train(arguments, corpus, is_on, seed):
    """Train once, with the stage, in a process of its own; return its figures."""
    recipe = {
        "model": MODEL, "weights": {"code": 1}, "seq_len": SEQ_LEN, "global_batch_size": BATCH, "seed": seed,
        "dtype": "float32", "optimizer": {"name": "muon", "learning_rate": 4e-3}, "steps": arguments.steps,
        "schedule": {"warmup_steps": min(10, arguments.steps - 1)}, "micro_batch_size": BATCH,
        "checkpoint": {"every": arguments.steps, "keep": 1},
        "validation": {"every": arguments.steps, "tokens": 1 << 15},
    } | ({"fill_in_the_middle": {}} if is_on else {})  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="caravan-fill-") as made:
        results, begun = Path(made), time.perf_counter()
        output = results / "milestone.json"
        harness.run_stage("pretrain", *harness.training_words(corpus.manifest.path.resolve(), results, recipe))
        validation = json.loads(output.read_text())["record"]["validation"]["code"]["loss_bits_per_byte"]
        losses = middle_losses(output, corpus, windows_of(corpus, arguments.windows))
    return {
        "fill_in_the_middle": is_on, "seed": seed, "validation_bits_per_byte": validation,
        "middle_bits_per_token": losses, "seconds": time.perf_counter() - begun, "load": os.getloadavg()[0],
    }  # fmt: skip


def summary(runs):
    """Return means, and differences paired by seed: {name: {"off", "on", "difference", "differences"}}."""
    by_seed = {is_on: {run["seed"]: run for run in runs if run["fill_in_the_middle"] == is_on} for is_on in (0, 1)}

    def paired(of_off, of_on):
        off, on = ([of(run) for run in side.values()] for of, side in ((of_off, by_seed[0]), (of_on, by_seed[1])))
        differences = [after - before for before, after in zip(off, on, strict=True)]
        means = {"off": statistics.mean(off), "on": statistics.mean(on), "difference": statistics.mean(differences)}
        return means | {"differences": differences}

    def middle(context):
        return lambda run: run["middle_bits_per_token"][context]

    def validation(run):
        return run["validation_bits_per_byte"]

    return {
        "validation, bits per byte": paired(validation, validation),
        **{f"middle after {context}, bits per token": paired(middle(context), middle(context)) for context in CONTEXTS},
        "middle, off after prefix, on after psm": paired(middle("prefix"), middle("psm")),
        "middle, off after prefix, on after spm": paired(middle("prefix"), middle("spm")),
    }


def main():
    """Train all, and write the JSON file."""
    parser = harness.parser_of(__doc__, "fill_in_the_middle")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--windows", type=int, default=256, help="held-out windows of code")
    parser.add_argument("--loader-turns", type=int, default=51, help="batches of the loader, with and without")
    arguments = parser.parse_args()
    from stages.lib.tokens.corpus import Corpus

    ended, runs = harness.EndedRuns(arguments.output), []
    with tempfile.TemporaryDirectory(prefix="caravan-corpus-") as made:
        corpus = Corpus(corpus_of(Path(made)))
        tokens = {split: corpus.sources["code"][split]["tokens"] for split in ("train", "validation")}
        loader = loader_speed(corpus, arguments.loader_turns)
        for seed in arguments.seeds:
            for is_on in (False, True):
                settings = [corpus.digest, MODEL, arguments.steps, arguments.windows, seed, is_on]
                run = ended.figures_of(settings, train, arguments, corpus, is_on, seed)
                runs.append(run)
                print(json.dumps(run), flush=True)
    summaries = summary(runs)
    for name, figure in summaries.items():
        differences = ", ".join(f"{difference:+.4f}" for difference in figure["differences"])
        print(f"{name}: off {figure['off']:.4f}, on {figure['on']:.4f}, {figure['difference']:+.4f} ({differences})")
    for length, speed in loader.items():
        off, on = (f"{speed[name]:,.0f}" for name in ("off", "on"))
        print(
            f"loader, {length} tokens per sample: off {off} samples per CPU-second, on {on}, {speed['ratio']:.2f} of it"
        )
    figures = {
        "model": MODEL, "seq_len": SEQ_LEN, "global_batch_size": BATCH, "steps": arguments.steps,
        "windows": arguments.windows, "tokens": tokens, "loader": loader, "summary": summaries, "runs": runs,
        "cpu_seconds": harness.cpu_seconds(),
    }  # fmt: skip
    ended.write("fill_in_the_middle", ("torch", "sentencepiece"), figures)


if __name__ == "__main__":
    main()
