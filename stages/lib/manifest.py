"""Manifests: the small JSON file that a stage writes last and the next stage reads.

    {"format": 2, "stage": "tokenize", "identity": {...}, "record": {...}, "sha256": "..."}

identity holds everything that the result depends on: the recipe's identity fields, the digests of the inputs'
identities and the sha256 of the outputs. record holds what may differ between two equal results: times, versions, host.
Digests chain through identity alone. sha256 is that of all the rest: a manifest that was edited or damaged is refused
wherever it is read. Three keys of a record hold what equal results need not share, and `tools.verify` checks: `files`,
`logs` (journals that grow: their first bytes) and `manifests` (sha256 of whole manifests, records included).
"""

import functools
import importlib.metadata
import json
import os
import platform
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

from stages.lib import files
from stages.lib.errors import UserError

PACKAGES = (
    *("torch", "numpy", "pyarrow", "sentencepiece", "tokenizers", "gigatoken"),
    *("transformers", "lm_eval", "snakemake"),
)
FORMAT = 2
"""Version of the manifests."""

PLAN_FORMAT = 1
"""Version of the file of figures that `tools.plan` writes and the report reads."""

TRAINING = ("pretrain", "finetune")
"""The stages whose manifests are milestones."""

COMMIT = "commit.json"
"""Name of a checkpoint's commit marker."""

KEYS = {"format", "stage", "identity", "record", "sha256"}
ENVIRONMENT = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "WORLD_SIZE")


class FileDescription(TypedDict):
    """A file."""

    bytes: int
    sha256: str


class Batch(TypedDict):
    """A record batch of a shard: what is in it, and at which bytes of the file its two columns begin."""

    documents: int
    tokens: int
    offsets_at: int
    values_at: int


class TextFile(FileDescription):
    """A file of validation text, by its path from the manifest."""

    path: str


class Shard(TextFile):
    """An Arrow file of token ids."""

    tokens: int
    documents: int
    text_bytes: int
    batches: list[Batch]


SplitName = Literal["train", "validation"]


class Split(TypedDict):
    """The training or the validation documents of a source, in order; `texts` of validation documents alone."""

    documents: int
    tokens: int
    text_bytes: int
    shards: list[Shard]
    texts: NotRequired[list[TextFile]]


COUNTED: tuple[Literal["documents", "tokens", "text_bytes"], ...] = ("documents", "tokens", "text_bytes")
"""The keys of a split that add up over its parts."""


class CorpusSource(TypedDict):
    """A source of a corpus; `ids` if its documents came as token ids."""

    train: Split
    validation: Split
    ids: NotRequired[Any]


class CorpusTokenizer(TypedDict):
    """The tokenizer of a corpus: its digest, ids, and whether documents begin with BOS."""

    digest: str
    vocab_size: int
    bos: int
    eos: int
    bos_added: bool
    fill_in_the_middle: NotRequired[Any]


class Score(TypedDict):
    """A score with its standard error and the number of documents, None where they are not known."""

    value: float | None
    stderr: float | None
    n: int | None


Scores = dict[str, dict[str, Score]]
"""{task: {metric: score}}"""


class Identity(TypedDict, total=False):
    """The keys of identities, of which each stage has some. Digests are those of other manifests' identities."""

    recipe: dict[str, Any]
    """The recipe's keys that are part of the identity and differ from their defaults."""
    outputs: dict[str, FileDescription]
    """By path from the manifest."""
    inputs: Any
    """tokenize: files of the source, with sha256; summarize: sha256 of manifests by path."""
    parts: Any
    """Of stages that gather parts: their digests."""

    source: str
    """Name of a source; beside it, its `source_recipe`, the number `part`, and digests of what filters it."""
    source_recipe: dict[str, Any]
    part: int
    files: list[dict[str, Any]]
    """list: `name` and `bytes` of the files of a source, in order."""
    classifier: str
    filter_code: str
    decontaminate: dict[str, str]
    documents: int
    train: Split
    validation: Split
    """tokenize: the documents of a part."""
    dtype: str
    """index: numpy's name of the dtype of token ids."""
    sources: dict[str, CorpusSource]

    tokenizer: Any
    """A digest; in tokenize and index a CorpusTokenizer."""
    vocab_size: int
    unk: int
    bos: int
    eos: int
    fill_in_the_middle: dict[str, int]
    pieces: str
    sample: str

    corpus: str
    initial: str
    """The checkpoint, as `checkpoint_digest` has it, that a training begins with."""
    tuned_on: dict[str, str]
    """finetune: digests of its sources by name."""
    template: str
    """finetune: sha256 of the chat template."""
    step: int
    samples: int
    tokens: int
    checkpoint: str
    """Directory of a milestone's checkpoint, from the manifest."""

    model: str
    seq_len: int
    parameters: int
    export: str
    baseline: str
    suite: str
    results: Any
    """evaluate: {task: {metric: Score}}; find_contamination: {task: items, and how many are contaminated}."""
    exchanged_contexts: Scores
    trivial: Scores
    """{task: {trivial reader: score}}"""
    groups: dict[str, list[str]]
    """{group of tasks: its tasks}"""
    task_versions: dict[str, Any]
    num_fewshot: dict[str, int]
    harness: str
    vllm: str
    chat_template: bool
    """False if questions were to be put in a chat template, and the model has none."""
    prompt_completion: str
    include: str
    """sha256 of a directory of task files."""

    items: str
    tasks: Any
    shards: Any
    ngram_words: int
    candidates: str
    lists: dict[str, str]
    evaluations: dict[str, str]
    contamination: dict[str, str]
    baselines: dict[str, str]
    licenses: list[str]
    name: str
    missing: list[str]
    models: Any
    points: Any
    curve: Any
    trained_on: Any


@dataclass(frozen=True)
class Manifest:
    """A manifest: its path, the name of the stage that wrote it, its identity and record."""

    path: Path
    stage: str
    identity: Identity
    record: dict[str, Any]
    """All that may differ between two equal results; see Clock.record for the keys that every stage has."""

    @functools.cached_property
    def digest(self) -> str:
        """The sha256 of the identity; other manifests refer to this one by it."""
        return digest_of(self.identity)

    @functools.cached_property
    def sha256(self) -> str:
        """The sha256 over stage, identity and record. It holds the identity's digest, which is computed once."""
        return digest_of({"format": FORMAT, "stage": self.stage, "identity": self.digest, "record": self.record})

    @property
    def directory(self) -> Path:
        """The directory that the manifest's paths are relative to."""
        return self.path.parent

    def output(self, name: str) -> Path:
        """Return the path of one output by its relative name.

        Raises UserError if the manifest does not list it, or the file is missing or has another size.
        """
        outputs = self.identity["outputs"]
        if name not in outputs:
            raise UserError(f"{self.path} does not list the output {name}")
        check_size(self.directory / name, outputs[name]["bytes"], self.path)
        return self.directory / name


def digest_of(identity: Any) -> str:
    """Return the sha256 of plain data in canonical JSON, in hexadecimal."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return files.sha256_bytes(text.encode())


def checkpoint_digest(model: Manifest) -> str:
    """Return the digest of the checkpoint's files, without the commit marker, of a milestone's manifest.

    It is `initial` in the identity of a model that is trained further from this one.
    """
    inside = f"{model.identity.get('checkpoint')}/"
    described = {name.removeprefix(inside): file for name, file in model.identity["outputs"].items()}
    return digest_of({name: file for name, file in described.items() if name != COMMIT})


def commit_digest(identity: Mapping[str, Any]) -> str:
    """Return the sha256 of the commit marker of a milestone's checkpoint, by the identity of its manifest."""
    return identity["outputs"][f"{identity['checkpoint']}/{COMMIT}"]["sha256"]


def check_size(path: Path, size: int, manifest_path: Path | str) -> None:
    """Raise UserError if a payload file is missing or has another size than its manifest states."""
    try:
        found = path.stat().st_size
    except OSError:
        raise UserError(
            f"{path} is missing, but {manifest_path} lists it; delete {manifest_path} and run the workflow again"
        ) from None
    check_found_size(path, found, size, manifest_path)


def check_found_size(path: Path | str, found: int, size: int, manifest_path: Path | str) -> None:
    """Raise UserError if the size found of a payload file is not the one that its manifest states."""
    if found != size:
        raise UserError(
            f"{path} has {found} bytes, but {manifest_path} lists {size}; "
            f"delete {manifest_path} and run the workflow again"
        )


def check_content(path: Path, described: FileDescription, manifest_path: Path | str) -> None:
    """Raise UserError if a payload file is missing or differs from its description, `{"bytes", "sha256"}`."""
    check_size(path, described["bytes"], manifest_path)
    if files.sha256_file(path) != described["sha256"]:
        raise UserError(
            f"{path} changed since {manifest_path} was written: its sha256 differs; "
            f"delete {manifest_path} and run the workflow again"
        )


def described(paths: Iterable[Path], home: Path) -> dict[str, FileDescription]:
    """Return {path relative to `home`: its description} of the files that exist, for `files` or `logs` of a record."""
    return {relative(path, home): describe(path) for path in paths if path.exists()}


def relative(path: Path, home: Path) -> str:
    """Return a path as a manifest in the directory `home` has it."""
    return Path(os.path.relpath(path, home)).as_posix()


def describe(path: Path | str, first: int = 0, end: int | None = None) -> FileDescription:
    """Return the description of a file, or of its bytes [first, end): `{"bytes": N, "sha256": HEX}`."""
    count, sha256 = files.sha256_range(path, first, end)
    return {"bytes": count, "sha256": sha256}


def read(path: Path | str, *stages: str) -> Manifest:
    """Read a manifest. `stages`: the names of the stages that may have written it; default: any.

    Raises UserError if it is missing, no manifest, of another format or stage, or changed since it was written.
    """
    return parse(path, files.read_json(path), *stages)


def is_manifest(data: Any) -> bool:
    """Return whether JSON data has the keys of a manifest, of any format."""
    return isinstance(data, dict) and {"identity", "record"} <= data.keys() <= KEYS


def parse(path: Path | str, data: Any, *stages: str) -> Manifest:
    """Return the manifest whose JSON is `data`; arguments and errors as of `read`."""
    if not is_manifest(data):
        raise _not_a_manifest(path)
    if data.get("format", 1) != FORMAT:
        raise UserError(
            f"{path} is a manifest of format {data.get('format', 1)!r:.20}, and this Caravan reads format {FORMAT}: "
            "move the results directory away and run the workflow again"
        )
    if data.keys() != KEYS or not all(isinstance(data[key], dict) for key in ("identity", "record")):
        raise _not_a_manifest(path)
    made = Manifest(Path(path), data["stage"], data["identity"], data["record"])
    if data["sha256"] != made.sha256:
        raise UserError(
            f"{path} changed since it was written: its sha256 differs from its content's; "
            f"delete it and run the workflow again"
        )
    if stages and made.stage not in stages:
        expected = " or ".join(f"stages.{name}" for name in stages)
        raise UserError(f"{path} is the manifest of stages.{made.stage}, expected one of {expected}")
    return made


def _not_a_manifest(path: Path | str) -> UserError:
    return UserError(f"{path} must be a manifest with the keys format, stage, identity, record and sha256")


def content(stage: str, identity: Mapping[str, Any], record: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest of the stage named `stage` as plain data."""
    made = Manifest(Path(), stage, cast(Identity, identity), record)
    return {"format": FORMAT, "stage": stage, "identity": identity, "record": record, "sha256": made.sha256}


def write(path: Path | str, stage: str, identity: Mapping[str, Any], record: dict[str, Any]) -> None:
    """Write a manifest of the stage named `stage` atomically. Relative paths in it start from its directory."""
    files.write_json(path, content(stage, identity, record))


class Clock:
    """Timer of a stage, from its start; makes the record of its manifest."""

    def __init__(self, code: str | None = None) -> None:
        self.code = code
        self.started = time.time()
        self.cpu = time.process_time()

    def record(self, **more: Any) -> dict[str, Any]:
        """Return the record of a manifest: seconds, versions, host, an allow-list of the environment, and `more`."""
        return {
            "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.started)),
            "seconds": round(time.time() - self.started, 3),
            "cpu_seconds": round(time.process_time() - self.cpu, 3),
            "commit": _commit(),
            "code": self.code,
            "host": platform.node(),
            "python": platform.python_version(),
            "versions": _versions(),
            "environment": {name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
            **more,
        }


def _versions() -> dict[str, str]:
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _commit() -> str | None:
    """The git commit of the code, with `+` if the tree has changes; None outside a checkout."""
    home = Path(__file__).resolve().parents[2]
    command = ["git", "-C", str(home), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
