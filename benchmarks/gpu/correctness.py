"""Correctness: each mode of training on the GPU against the same losses on the CPU, bits after a kill, other stages."""

import functools
import json
import threading
from dataclasses import dataclass, field

from benchmarks.gpu.session import Skipped, Step, StepError, require
from stages.lib import files, manifest
from stages.lib.run_directory import journal
from stages.lib.run_directory.events import read_events

STEPS, DRY_STEPS = 40, 4
FIRST = 5
"""Steps whose losses are compared one by one: later ones grow apart by rounding."""

MODEL = {
    "num_hidden_layers": 4,
    "hidden_size": 256,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 704,
    "max_position_embeddings": 256,
}
RECIPE = {
    "model": MODEL,
    "weights": {"code": 1},
    "seq_len": 256,
    "global_batch_size": 8,
    "dtype": "float32",
    "optimizer": {"learning_rate": 2e-3},
    "schedule": {"warmup_steps": 5},
}
SMALL = {"model": MODEL | {"num_hidden_layers": 1, "hidden_size": 32, "intermediate_size": 48}, "seq_len": 64}
"""Changes of the dry form, which is not about speed."""

VOCABULARY = 2000
TOKENIZER, STATEMENTS = "tokenizer/manifest.json", "statements.json"
UNCUT = "uncut"
"""The name of the training with which others are compared bit for bit."""

MASKED = {"packing": "best_fit", "document_mask": True}
EXPERTS = {"model": MODEL | {"architecture": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}}
WINDOW = {"model": MODEL | {"architecture": "mistral", "sliding_window": 64}}
HALF = {"dtype": "bfloat16"}


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A mode of training: changes of the recipe and of the keys that change no result.

    `first`, `last`: largest relative difference from the CPU's float32 losses, of the first steps and of the last.
    """

    recipe: dict = field(default_factory=dict)
    operation: dict = field(default_factory=dict)
    first: float = 1e-4
    last: float = 0.02
    dry: bool = False
    """True if the dry form has it."""


def _half(recipe=None, **operation):
    """Return a mode in bfloat16, whose losses have fewer digits."""
    return Mode(recipe=HALF | (recipe or {}), operation=operation, first=0.01, last=0.03)


FULL, SELECTIVE = ({"mode": mode} for mode in ("full", "selective"))
MODES = {
    "float32": Mode(dry=True),
    "bfloat16": _half(),
    "bfloat16, compiled": _half(compile=True),
    "document mask, bfloat16": _half(MASKED),
    "document mask, bfloat16, compiled, selective": _half(MASKED, compile=True, activation_checkpointing=SELECTIVE),
    "document mask": Mode(recipe=MASKED),
    "sliding window, bfloat16, compiled": _half(WINDOW, compile=True),
    "sliding window, document mask": Mode(recipe=WINDOW | MASKED),
    "experts, bfloat16 (grouped products)": _half(EXPERTS),
    "selective checkpointing": Mode(operation={"activation_checkpointing": SELECTIVE}),
    "full checkpointing, compiled": _half(compile=True, activation_checkpointing=FULL),
    "activation offload": Mode(operation={"activation_checkpointing": {"mode": "offload"}}),
    "CPU offload": Mode(operation={"cpu_offload": True}),
    "bfloat16 moments, replicated, compiled": _half(
        {"optimizer": RECIPE["optimizer"] | {"state_dtype": "bfloat16"}}, sharding="none", compile=True
    ),
    "Muon, bfloat16": _half({"optimizer": RECIPE["optimizer"] | {"name": "muon"}}),
    "synchronous saves": Mode(operation={"checkpoint": {"every": 10, "asynchronous": False}}),
}


def corpus_step(session, *, is_elsewhere=False):
    """Return the step that makes the corpus, if it is not there.

    `is_elsewhere`: trainings run on another machine, so what names files of this one's Python is not made.
    """

    def take():
        home, corpus = session.corpus, session.corpus / "tokens/manifest.json"
        if not is_elsewhere and not (home / STATEMENTS).exists():
            words = ["--name", "statements", *_recipe({"kind": "python-statements", "validation": 0.1})]
            session.command("corpus", "stages.list", *words, "--output", home / STATEMENTS)
        if corpus.exists():
            return f"{corpus} exists", {}
        require("orjson", "pyarrow")  # a corpus from --prepare needs none
        listed, tokenizer, part = home / "list.json", home / TOKENIZER, home / "tokens/code/00000.json"
        sample = {"vocab_size": VOCABULARY, "sample": {"code": 1}}
        for words in (
            ["list", "--name", "code", *_recipe({"kind": "python-code", "validation": 0.1}), "--output", listed],
            ["train_tokenizer", "--lists", listed, *_recipe(sample), "--output", tokenizer],
            ["tokenize", "--list", listed, "--tokenizer", tokenizer, "--part", 0, *_recipe({"parts": 1})]
            + ["--output", part],
            ["index", "--tokenizer", tokenizer, "--parts", part, "--output", corpus],
        ):
            session.command("corpus", f"stages.{words[0]}", *words[1:])
        return f"{corpus} made", {}

    return Step(name="corpus", take=take, minutes=5)


def corpus_of(session):
    """Return the manifest of the corpus. Raises Skipped if it could not be made."""
    corpus = session.corpus / "tokens/manifest.json"
    if not corpus.exists():
        raise Skipped("there is no corpus")
    return corpus


def steps(session):
    """Yield the steps."""
    modes = {name: mode for name, mode in MODES.items() if mode.dry or not session.dry}
    losses = CpuLosses(session)
    yield corpus_step(session)
    for name, mode in modes.items():
        yield Step(name=name, take=functools.partial(_mode, session, losses, name, mode), minutes=4, alone=False)
    for name, recipe in (("deterministic twice", HALF), ("deterministic twice, document mask", HALF | MASKED)):
        yield Step(name=name, take=functools.partial(_twice, session, name, recipe), minutes=4)
    yield Step(name="killed and resumed", take=functools.partial(_killed, session), minutes=5)
    yield Step(name="profile and memory snapshot", take=functools.partial(_profile, session), minutes=3, alone=False)
    yield Step(name="fine-tuning", take=functools.partial(_finetune, session), minutes=3)
    yield Step(name="convert, parity", take=functools.partial(_convert, session), minutes=3)
    yield Step(name="evaluate", take=functools.partial(_evaluate, session), minutes=4)
    yield Step(name="generate", take=functools.partial(_generate, session), minutes=2)


class CpuLosses:
    """The losses of float32 trainings on the CPU, each trained once."""

    def __init__(self, session):
        self.session = session
        self._known, self._locks, self._lock = {}, {}, threading.Lock()

    def of(self, step, recipe):
        """Return the losses of a recipe in float32; its steps count in the time of `step`."""
        key = manifest.digest_of(recipe | {"dtype": "float32"})[:12]
        with self._lock:
            lock = self._locks.setdefault(key, threading.Lock())
        with lock:
            if key not in self._known:
                directory = train(self.session, step, f"cpu-{key}", recipe | {"dtype": "float32"}, {}, on_cpu=True)
                self._known[key] = losses_of(directory)
            return self._known[key]


def length(session):
    """Return the number of steps of a training."""
    return DRY_STEPS if session.dry else STEPS


def train(session, step, name, recipe, operation, *options, **how):
    """Train a run of its own; return its run directory. Raises StepError. `how`: options of Session.command."""
    _train(session, step, name, recipe, operation, *options, **how)
    return next((home_of(session, name) / "train").iterdir())


def home_of(session, name):
    """Return the directory of a training's run directory and models."""
    return session.made / "runs" / name.replace(" ", "_").replace(",", "")


def _train(session, step, name, recipe, operation, *options, **how):
    """Train; return whether the training was killed."""
    until, home = length(session), home_of(session, name)
    keys = {"steps": until, "micro_batch_size": 4, "validation": {"every": 1000, "tokens": 10_000}}
    return session.command(
        *(step, "stages.pretrain", "--corpus", corpus_of(session), "--until", until, "--train-dir", home / "train"),
        *("--output", home / f"models/{until:08d}.json", *_recipe(RECIPE | recipe | (SMALL if session.dry else {}))),
        *("--operation", json.dumps(keys | operation), *options),
        **how,
    )


def _recipe(recipe):
    return ["--recipe", json.dumps(recipe)]


def losses_of(directory):
    """Return the loss of each step of a run directory."""
    entries = journal.read(directory / "metrics.jsonl", lambda entry: True)
    return [entry["loss"] for entry in entries if "loss" in entry]


def difference(ours, theirs):
    """Return the largest relative differences of losses: of the first steps, and of the mean of the last ones."""
    if len(ours) != len(theirs):
        raise StepError(f"{len(ours)} steps have a loss, and {len(theirs)} on the CPU")
    first = max(abs(a / b - 1) for a, b in zip(ours[:FIRST], theirs[:FIRST], strict=True))
    last = sum(ours[-FIRST:]) / sum(theirs[-FIRST:]) - 1
    return first, abs(last)


def _mode(session, losses, name, mode):
    expected = losses.of(name, mode.recipe)
    found = losses_of(train(session, name, name, mode.recipe, mode.operation))
    first, last = difference(found, expected)
    figures = {"first": first, "last": last, "losses": found, "cpu_losses": expected}
    line = f"off the CPU's losses by {first:.1e} in the first {FIRST} steps, {last:.1e} in the last"
    if first > mode.first or last > mode.last:
        raise StepError(f"{line}; at most {mode.first:.0e} and {mode.last:.0e} are expected", figures)
    return line, figures


def weights_of(directory, step):
    """Return {name: sha256} of a checkpoint's tensor files."""
    commit = files.read_json_object(directory / f"checkpoints/{step:08d}/commit.json")
    return {name: file["sha256"] for name, file in commit["files"].items() if name.endswith(".distcp")}


def _deterministic(session):
    """Return the operation keys of trainings whose bits are compared."""
    return {"deterministic": True, "checkpoint": {"every": max(1, length(session) // 4), "keep": 1}}


def _twice(session, step, recipe):
    keys, until, uncut = _deterministic(session), length(session), UNCUT if recipe == HALF else f"{step}, once"
    names = uncut, f"{step}, again"
    first, second = (weights_of(train(session, step, name, recipe, keys), until) for name in names)
    if first != second:
        raise StepError("two trainings with `deterministic` have different weights")
    return f"equal weights, sha256 {next(iter(first.values()))[:12]}", {"sha256": first}


def _killed(session):
    uncut = sorted((home_of(session, UNCUT) / "train").glob("*"))
    if not uncut:
        raise Skipped("there is no training that was not killed")
    found = weights_of(uncut[0], length(session))
    return kill_and_resume(session, "killed and resumed", "killed", HALF, _deterministic(session), found)


def kill_and_resume(session, step, name, recipe, operation, expected):
    """Kill a training after its first checkpoint, and resume it; its last weights must be the expected sha256."""

    def has_saved():
        return any((home_of(session, name) / "train").glob("*/checkpoints/[0-9]*/commit.json"))

    if not _train(session, step, name, recipe, operation, kill_when=has_saved):
        raise StepError("the training ended before it was killed")
    resumed = train(session, step, name, recipe, operation)
    if weights_of(resumed, length(session)) != expected:
        raise StepError("a killed and resumed training has other weights than one that was not killed")
    resumes = sum(event["event"] == "resume" for event in read_events(resumed))
    return f"equal weights after {resumes} resume", {"resumes": resumes}


def _profile(session):
    options = ["--profile-steps", "2:3", *([] if session.dry else ["--memory-snapshot"])]
    name = "profile and memory snapshot"
    directory = train(session, name, "profile", HALF, {}, *options)
    names = sorted(path.name for path in (directory / "profile").rglob("*") if path.is_file())
    if not names or (not session.dry and not any(name.endswith(".pickle") for name in names)):
        raise StepError(f"{directory / 'profile'} has {names}: it must have a profile and a snapshot")
    return f"{len(names)} files: {', '.join(names)}", {"files": names}


def _model(session):
    """Return the manifest of the model that other stages read. Raises Skipped without it."""
    found = sorted((home_of(session, "float32") / "models").glob("*.json"))
    if not found:
        raise Skipped("the training in float32 made no model")
    return found[-1]


def _data(session):
    return ["--corpus", corpus_of(session), "--tokenizer", session.corpus / TOKENIZER]


def _finetune(session):
    name, home, model = "fine-tuning", session.made / "tuned", _model(session)
    listed = session.corpus / STATEMENTS
    recipe = {
        "weights": {"statements": 1},
        "seq_len": 128,
        "global_batch_size": 8,
        "optimizer": {"learning_rate": 1e-3},
    }
    until = length(session)
    session.command(
        *(name, "stages.finetune", "--sources", listed, *_data(session), "--initial", model, "--until", until),
        *(*_recipe(recipe), "--operation", json.dumps({"steps": until, "micro_batch_size": 4})),
        *("--train-dir", home / "train", "--output", home / f"models/{until:08d}.json"),
    )
    losses = losses_of(next((home / "train").iterdir()))
    if not session.dry and not losses[-1] < losses[0]:
        raise StepError(f"the loss must fall, and went from {losses[0]:.3f} to {losses[-1]:.3f}")
    return f"loss {losses[0]:.3f} to {losses[-1]:.3f}", {"losses": losses}


def _convert(session):
    output = session.made / "export/manifest.json"
    session.command(
        "convert, parity", "stages.convert", "--model", _model(session), *_data(session), "--output", output
    )
    parity = files.read_json_object(output.with_name("parity.json"))
    return "the export equals the model", {"parity": parity}


def _evaluate(session):
    """Score the export on the GPU and on the CPU, in the dry form only there; the bits per byte must agree."""
    export, name, scores = session.made / "export/manifest.json", "evaluate", {}
    places = ["cpu"] if session.dry else ["gpu", "cpu"]
    if not export.exists():
        raise Skipped("there is no export")
    require("lm_eval", "orjson")
    for place in places:
        output = session.made / f"eval-{place}/validation.json"
        recipe = {"tasks": ["bits_per_byte"], "bytes_per_source": 20_000}
        words = ["--export", export, "--corpus", corpus_of(session), *_recipe(recipe)]
        session.command(name, "stages.evaluate", *words, "--output", output, on_cpu=place == "cpu")
        (task,) = manifest.read(output, "evaluate").identity["results"].values()
        scores[place] = task["bits_per_byte"]["value"]
    found = scores[places[0]]
    off = abs(found / scores["cpu"] - 1)
    if off > 1e-3:
        raise StepError(f"bits per byte are {found:.6f}, and {scores['cpu']:.6f} on the CPU")
    return f"bits per byte {found:.5f}, off the CPU's by {off:.1e}", scores


def _generate(session):
    words = ["--model", _model(session), "--tokenizer", session.corpus / TOKENIZER, "--prompt", "def read("]
    session.command("generate", "tools.generate", *words, "--tokens", 16)
    return "16 tokens", {}
