"""The resume gauntlet: the same training killed twice and resumed twice, by ours and by four peers.

    python -m benchmarks.resume                                 # ours alone, a minute
    python -m benchmarks.resume --systems caravan litgpt nanochat torchtitan transformers --environments DIR   # ten
    python -m benchmarks.resume --steps 12 --batch 16           # a smoke test

Each sample is a document whose number is in its first tokens, and a hook on the embedding records which samples enter
the model at which step. Checkpoints are written every sixth of the steps. A SIGKILL ends every process of a training in
the middle between two checkpoints, twice, and the training is started again by the same command, with the same ranks
and micro-batch, with another micro-batch, or with another number of ranks; the samples per step stay the same. A step
that a later start takes again from a checkpoint replaces the earlier one. What is then compared with the same training
undisturbed, for each system by itself:

- repeated: samples that entered the final model more often than that of the undisturbed training.
- lost: samples that the undisturbed training had, and this one had not.
- difference: of the final loss on documents that are held out.
- refused: a start that ended with an error instead of training on.
- steps: all that were taken; a training may end too early or too late.

The corpus has more documents than a training reads, so no epoch ends. Each peer runs its own loader, checkpoints and
resume on a tiny model (`resume_peers.py` has them, and what stands in for a GPU), and wants an environment of its own,
DIR/NAME, with the torch of this one:

    python -m venv DIR/litgpt && DIR/litgpt/bin/pip install torch==VERSION litgpt==0.5.13 litdata==0.2.76
    DIR/litgpt/bin/pip uninstall -y torchvision        # PyPI's does not load beside a torch without CUDA
    python -m venv DIR/nanochat && DIR/nanochat/bin/pip install torch==VERSION numpy pyarrow
    git clone https://github.com/karpathy/nanochat DIR/nanochat/checkout     # PyPI has its tokenizer alone
    DIR/nanochat/bin/pip install requests tiktoken rustbpe                   # what the whole checkout imports
    python -m venv DIR/torchtitan && DIR/torchtitan/bin/pip install torch==VERSION torchtitan==0.3.0 triton
    python -m venv DIR/transformers && DIR/transformers/bin/pip install torch==VERSION transformers==5.23.0 accelerate

A name with a label is the same peer in another environment: torchtitan@datasets-5.0.0 is that of torchtitan's issue
3907, `pip install datasets==5.0.0` in DIR/torchtitan@datasets-5.0.0.
"""

import collections
import contextlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks import harness
from benchmarks.harness import HOME
from benchmarks.resume_peers import BOS, DIGIT, EOS, FIRST
from stages.lib.errors import UserError

PACKAGES = {
    "caravan": ("torch",),
    "litgpt": ("litgpt", "litdata"),
    "nanochat": ("torch", "pyarrow"),
    "torchtitan": ("torchtitan", "datasets"),
    "transformers": ("transformers", "accelerate"),
}
"""{system: the packages that its environment must have}"""

SCENARIOS = {
    "undisturbed": ((1, 8),),
    "the same": ((1, 8), (1, 8), (1, 8)),
    "another micro-batch": ((1, 8), (1, 4), (1, 2)),
    "another number of ranks": ((1, 8), (2, 8), (1, 8)),
}
"""{scenario: (ranks, micro-batch) of each start}"""

SEQ_LEN, VOCABULARY, HELD_OUT = 16, 256, 64
SPARE = 4096
"""Documents beyond those that a training reads: more than nanochat skips at two resumes."""

PATIENCE = 300
"""Seconds after which a start has hung."""


def write_corpus(directory, num_documents):
    """Write the same documents for each system: an array, lines of JSON, parquet, and shards with their manifest."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stages.lib import manifest
    from stages.lib.tokens import shards

    rng, numbers = np.random.default_rng(0), np.arange(num_documents + HELD_OUT)
    documents = np.full((len(numbers), SEQ_LEN + 1), BOS)
    documents[:, 1], documents[:, 2] = FIRST + numbers // DIGIT, FIRST + numbers % DIGIT
    for place in range(3, SEQ_LEN):  # each token follows from the one before, but for two bits
        following = documents[:, place - 1] * 5 + rng.integers(4, size=len(numbers))
        documents[:, place] = FIRST + following % (VOCABULARY - FIRST)
    documents[:, -1] = EOS
    np.save(directory / "documents.npy", documents)
    texts = [" ".join(map(str, document[1:-1])) for document in documents[:num_documents].tolist()]
    for name in ("text", "parquet", "tokenizer"):
        (directory / name).mkdir()
    for part in range(4):
        share = texts[part * num_documents // 4 : (part + 1) * num_documents // 4]
        lines = "".join(json.dumps({"text": text}) + "\n" for text in share)
        (directory / f"text/{part}.jsonl").write_text(lines, encoding="utf-8")
    for number, share in enumerate((texts, texts[:1])):  # the last file is nanochat's validation text
        pq.write_table(pa.table({"text": share}), directory / f"parquet/{number}.parquet", row_group_size=1024)
    words = {"<s>": BOS, "</s>": EOS, "<unk>": 0} | {str(token): token for token in range(FIRST, VOCABULARY)}
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "added_tokens": [{"id": words[word], "content": word} | special for word in ("<unk>", "<s>", "</s>")],
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "<unk>"},
    }
    (directory / "tokenizer/tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    names = {"bos_token": "<s>", "eos_token": "</s>"}
    (directory / "tokenizer/tokenizer_config.json").write_text(json.dumps(names), encoding="utf-8")
    splits = {}
    for split, rows in (("train", documents[: num_documents + 1, :-1]), ("validation", documents[-HELD_OUT:, :-1])):
        writer, lengths = shards.Writer(directory, split, "uint16"), [rows.shape[1]] * len(rows)
        writer.add(rows.astype(np.uint16).ravel(), lengths, lengths)
        splits[split] = {"shards": writer.finish()}
    np.save(directory / "bytes_of_ids.npy", np.ones(VOCABULARY))
    facts = {"digest": "numbered", "vocab_size": VOCABULARY, "bos": BOS, "eos": EOS, "bos_added": True}
    identity = {"recipe": {}, "tokenizer": facts, "dtype": "uint16", "sources": {"web": splits}}
    files = {"bytes_of_ids.npy": manifest.describe(directory / "bytes_of_ids.npy")}
    record = {"files": files, "bytes_scale": {"web": 1.0}}
    manifest.write(directory / "manifest.json", "index", identity, record)


class Gauntlet:
    """The trainings of a call, each start in processes of its own."""

    def __init__(self, arguments, work):
        self.arguments, self.work, self.every = arguments, work, arguments.steps // 6
        self.kills = [2 * self.every + -(-self.every // 2), 4 * self.every + -(-self.every // 2), None]
        corpus = work / "corpus"
        corpus.mkdir()
        write_corpus(corpus, arguments.steps * arguments.batch + SPARE)
        self.job = {"corpus": str(corpus), "batch": arguments.batch, "steps": arguments.steps, "every": self.every}
        self.job |= {"seq_len": SEQ_LEN, "vocab_size": VOCABULARY, "held_out": HELD_OUT}
        self.job["nanochat"] = str(checkout_of(arguments).absolute())

    def start(self, system, directory, number, settings, kill_after):
        """Start a training once; return (exit code, output). It kills itself after a step, if that is not None."""
        (ranks, micro_batch), path = settings, directory / f"job-{number}.json"
        job = {"system": system, "directory": str(directory), "start": number, "kill_after": kill_after}
        job |= {"ranks": ranks, "micro_batch_size": micro_batch}
        path.write_text(json.dumps(self.job | job), encoding="utf-8")
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)] if ranks > 1 else []
        command = [python_of(system, self.arguments.environments), *launch, "-m", "benchmarks.resume_peers", str(path)]
        switches = {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(self.work / "datasets")}
        output = directory / f"output-{number}.txt"
        with open(output, "w", encoding="utf-8") as file:
            environment = harness.environment(**harness.ONE_THREAD, **switches)
            process = subprocess.Popen(command, cwd=HOME, env=environment, stdout=file, stderr=file)
            try:
                code, ended = process.wait(PATIENCE), ""
            except subprocess.TimeoutExpired:
                process.terminate()  # torchrun then ends its ranks
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(30)
                process.kill()
                code, ended = process.wait(), f"\nTimeoutError: it did not end within {PATIENCE} s"
        text = output.read_text(encoding="utf-8", errors="replace") + ended
        return code, text.replace(f"{directory}/", "")

    def run(self, system, scenario):
        """Train under the kills of a scenario; return what is to be known of each start, the samples and the loss.

        Raises UserError if the first start fails: nothing is resumed then.
        """
        directory, starts, trained = self.work / f"{system} {scenario}", [], {}
        directory.mkdir()
        settings = SCENARIOS[scenario]
        for number, (setting, kill_after) in enumerate(zip(settings, self.kills[-len(settings) :], strict=True)):
            code, output = self.start(system, directory, number, setting, kill_after)
            by_step, killed_after = samples_of(directory, number)
            start = {"ranks": setting[0], "micro_batch_size": setting[1]}
            starts.append(start)
            if by_step:
                start["resumed_from"] = min(by_step) - 1
                trained = {step: samples for step, samples in trained.items() if step < min(by_step)} | by_step
            if killed_after is not None:
                start["killed_after"] = killed_after
            elif code:
                start["refused"] = reason_of(output)
                if not number or "NotImplementedError" in start["refused"]:  # of resume_peers.py, not of the peer
                    print(output, file=sys.stderr)
                    raise UserError(f"start {number + 1} of {system} failed: {start['refused']}")
                break
            else:  # a training may take itself for finished before its kill
                start["ended_after"] = max(by_step)
                break
        found = {"starts": starts, "samples": [number for step in sorted(trained) for number in sorted(trained[step])]}
        if "refused" not in starts[-1]:
            found["loss"] = json.loads((directory / "loss.json").read_text(encoding="utf-8"))
            found["steps"] = max(trained)
        return found


def samples_of(directory, number):
    """Return {step: samples that entered the model on all ranks} of a start, and after which step it was killed."""
    by_step, killed_after = collections.defaultdict(list), None
    for path in sorted(directory.glob(f"samples-{number}-*.jsonl")):
        for entry in map(json.loads, path.read_text(encoding="utf-8").splitlines()):
            killed_after = entry.get("killed_after", killed_after)
            if "step" in entry:
                by_step[entry["step"]] += entry["samples"]
    return dict(by_step), killed_after


def reason_of(output):
    """Return the last error that a program printed, in one line."""
    lines = [re.sub(r"^\[?rank ?\d\]?:? ?", "", line).strip() for line in output.splitlines()]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b|pretrain: ", line)]
    own = [line for line in errors if "ChildFailedError" not in line]
    return (own or errors or lines or ["no output"])[-1][:300]


def compare(found, undisturbed):
    """Return a row: samples repeated and lost, the difference of the final loss, and what was refused."""
    row = {"starts": found["starts"]}
    if reason := found["starts"][-1].get("refused"):
        return row | {"refused": reason}
    ours, theirs = collections.Counter(found["samples"]), collections.Counter(undisturbed["samples"])
    return row | {
        "steps": found["steps"],
        "samples": len(found["samples"]),
        "repeated": sum((+collections.Counter({key: ours[key] - max(1, theirs[key]) for key in ours})).values()),
        "lost": sum((theirs - ours).values()),
        "loss": found["loss"],
        "difference": abs(found["loss"] - undisturbed["loss"]),
    }


def python_of(system, environments):
    """Return the Python of a system's environment."""
    return sys.executable if system == "caravan" else str(environments / system / "bin/python")


def checkout_of(arguments):
    """Return the directory of nanochat's checkout."""
    return (arguments.environments or Path()) / "nanochat/checkout"


def check(arguments):
    """Return the versions of each system's packages. Raises UserError, before anything is trained."""
    if unknown := [name for name in arguments.systems if name.partition("@")[0] not in PACKAGES]:
        raise UserError(f"--systems must be of {', '.join(PACKAGES)}, got {', '.join(unknown)}")
    if arguments.steps < 12 or arguments.batch % 16:
        raise UserError(
            "--steps must be at least 12 and --batch a multiple of 16 samples (two ranks of 8), "
            f"got {arguments.steps} and {arguments.batch}"
        )
    if (arguments.steps * arguments.batch + SPARE + HELD_OUT) // DIGIT >= VOCABULARY - FIRST:
        raise UserError(f"--steps x --batch must be below 8192 samples, got {arguments.steps * arguments.batch}")
    versions = {}
    for system in arguments.systems:
        if system != "caravan" and not arguments.environments:
            raise UserError(f"{system} needs --environments DIR with its environment DIR/{system}; --help has commands")
        python, packages = python_of(system, arguments.environments), PACKAGES[system.partition("@")[0]]
        versions[system] = harness.versions_of(python, packages)
        if len(versions[system]) < len(packages):
            raise UserError(
                f"{python} has no {' and '.join(packages)}: make the environment of {system} by its command in "
                "--help, or leave it out of --systems"
            )
    if "nanochat" in versions:
        checkout = checkout_of(arguments)
        if not (checkout / "nanochat/gpt.py").is_file():
            raise UserError(f"{checkout} must be a checkout of https://github.com/karpathy/nanochat")
        versions["nanochat"]["nanochat"] = harness.commit(checkout)
    return versions


def text_of(row):
    """Return a row in words."""
    if "refused" in row:
        return f"refused: {row['refused']}"
    counts = f"{row['steps']} steps, {row['repeated']} samples repeated, {row['lost']} lost"
    return f"{counts}, final loss differs by {row['difference']:.2g}"


def main(argv=None):
    """Run the command line; return its exit code: 2 for a mistake of the user."""
    parser = harness.parser_of(__doc__, "resume")
    parser.add_argument("--systems", nargs="+", default=["caravan"], metavar="NAME", help=", ".join(PACKAGES))
    parser.add_argument("--environments", type=Path, metavar="DIR", help="has an environment DIR/NAME per peer")
    parser.add_argument("--steps", type=int, default=60, help="of a training (60)")
    parser.add_argument("--batch", type=int, default=32, help="samples per step (32)")
    arguments = parser.parse_args(argv)
    try:
        versions, rows = check(arguments), {}
        with tempfile.TemporaryDirectory(prefix="caravan-resume-") as work:
            gauntlet = Gauntlet(arguments, Path(work))
            for system in arguments.systems:
                undisturbed, *disturbed = SCENARIOS
                baseline = gauntlet.run(system, undisturbed)
                rows[system] = {}
                for scenario in disturbed:
                    row = rows[system][scenario] = compare(gauntlet.run(system, scenario), baseline)
                    print(f"{system}, {scenario}: {text_of(row)}", flush=True)
    except UserError as error:
        print(f"resume: {error}", file=sys.stderr)
        return 2
    figures = {"steps": arguments.steps, "batch": arguments.batch, "systems": versions, "rows": rows}
    harness.write(arguments.output, "resume", ("torch",), figures)
    return 0


if __name__ == "__main__":
    sys.exit(main())
