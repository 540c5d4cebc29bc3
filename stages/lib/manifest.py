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
from typing import Any, Generic, Literal, TypedDict, TypeVar, overload

from stages.lib import files
from stages.lib import manifest_types as types
from stages.lib.errors import UserError
from stages.lib.manifest_types import FileDescription, Files

PACKAGES = (
    *("torch", "numpy", "pyarrow", "sentencepiece", "tokenizers", "gigatoken"),
    *("transformers", "lm_eval", "snakemake"),
)
FORMAT = 2
"""Version of the manifests."""

PLAN_FORMAT = 1
"""Version of the file of figures that `tools.plan` writes and the report reads."""

TRAINING: tuple[Literal["pretrain"], Literal["finetune"]] = ("pretrain", "finetune")
"""The stages whose manifests are milestones."""

AVERAGE: Literal["average_weights"] = "average_weights"
"""The stage whose models are means of the milestones of another run."""

MODELS: tuple[Literal["pretrain"], Literal["finetune"], Literal["average_weights"]] = (*TRAINING, AVERAGE)
"""The stages whose manifests describe a model: the milestones, and the means of several."""

COMMIT = "commit.json"
"""Name of a checkpoint's commit marker."""

KEYS = {"format", "stage", "identity", "record", "sha256"}
ENVIRONMENT = ("OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "WORLD_SIZE")


Identity_co = TypeVar("Identity_co", bound=Mapping[str, Any], covariant=True)
Record_co = TypeVar("Record_co", bound=Mapping[str, Any], covariant=True)


class _Outputs(TypedDict):
    outputs: Files


class _Checkpoint(_Outputs):
    checkpoint: str


@dataclass(frozen=True)
class Manifest(Generic[Identity_co, Record_co]):
    """A manifest: its path, the name of the stage that wrote it, its identity and record, whose keys are those of
    `manifest_types`. `Manifest` alone is that of any stage, with any keys.
    """

    path: Path
    stage: str
    identity: Identity_co
    record: Record_co

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

    def output(self: "Manifest[_Outputs, Any]", name: str) -> Path:
        """Return the path of one output by its relative name.

        Raises UserError if the manifest does not list it, or the file is missing or has another size.
        """
        outputs = self.identity["outputs"]
        if name not in outputs:
            raise UserError(f"{self.path} does not list the output {name}")
        check_size(self.directory / name, outputs[name]["bytes"], self.path)
        return self.directory / name


ListManifest = Manifest[types.ListIdentity, types.ListRecord]
ClassifierManifest = Manifest[types.ClassifierIdentity, types.ClassifierRecord]
TokenizerManifest = Manifest[types.TokenizerIdentity, types.TokenizerRecord]
DocumentsManifest = Manifest[types.DocumentsIdentity, types.Record]
DuplicatesManifest = Manifest[types.DuplicatesIdentity, types.DuplicatesRecord]
CandidatesManifest = Manifest[types.NearDuplicatesIdentity, types.Record]
NearDuplicatesManifest = Manifest[types.NearDuplicatesIdentity, types.NearDuplicatesRecord]
ItemsManifest = Manifest[types.ItemsIdentity, types.CodeRecord]
PartManifest = Manifest[types.PartIdentity, types.PartRecord]
CorpusManifest = Manifest[types.CorpusIdentity, types.CorpusRecord]
OverlapsManifest = Manifest[types.OverlapsIdentity, types.Record]
ContaminationManifest = Manifest[types.ContaminationIdentity, types.Record]
ModelManifest = Manifest[types.ModelIdentity, types.ModelRecord]
PredictionManifest = Manifest[types.PredictionIdentity, types.Record]
ExportManifest = Manifest[types.ExportIdentity, types.ExportRecord]
EvaluationManifest = Manifest[types.EvaluationIdentity, types.EvaluationRecord]
CardManifest = Manifest[types.CardIdentity, types.Record]
SummaryManifest = Manifest[types.SummaryIdentity, types.Record]


def digest_of(identity: Any) -> str:
    """Return the sha256 of plain data in canonical JSON, in hexadecimal."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return files.sha256_bytes(text.encode())


def checkpoint_digest(model: Manifest[_Checkpoint, Any]) -> str:
    """Return the digest of the checkpoint's files, without the commit marker, of a milestone's manifest.

    It is `initial` in the identity of a model that is trained further from this one.
    """
    inside = f"{model.identity.get('checkpoint')}/"
    described = {name.removeprefix(inside): file for name, file in model.identity["outputs"].items()}
    return digest_of({name: file for name, file in described.items() if name != COMMIT})


def trained_by(model: "ModelManifest") -> str:
    """Return the stage that trained a model, pretrain or finetune; of averaged weights the one of their milestones."""
    if model.stage != AVERAGE:
        return model.stage
    return "finetune" if "tuned_on" in model.identity else "pretrain"


def commit_digest(identity: _Checkpoint) -> str:
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


def described(paths: Iterable[Path], home: Path) -> Files:
    """Return {path relative to `home`: its description} of the files that exist, for `files` or `logs` of a record."""
    return {relative(path, home): describe(path) for path in paths if path.exists()}


def relative(path: Path, home: Path) -> str:
    """Return a path as a manifest in the directory `home` has it."""
    return Path(os.path.relpath(path, home)).as_posix()


def describe(path: Path | str, first: int = 0, end: int | None = None) -> FileDescription:
    """Return the description of a file, or of its bytes [first, end): `{"bytes": N, "sha256": HEX}`."""
    count, sha256 = files.sha256_range(path, first, end)
    return {"bytes": count, "sha256": sha256}


@overload
def read(path: Path | str, stage: Literal["list"], /) -> ListManifest: ...
@overload
def read(path: Path | str, stage: Literal["train_classifier"], /) -> ClassifierManifest: ...
@overload
def read(path: Path | str, stage: Literal["train_tokenizer"], /) -> TokenizerManifest: ...
@overload
def read(path: Path | str, stage: Literal["hash_documents", "sketch", "copy_candidates"], /) -> DocumentsManifest: ...
@overload
def read(path: Path | str, stage: Literal["find_duplicates"], /) -> DuplicatesManifest: ...
@overload
def read(path: Path | str, stage: Literal["find_candidates"], /) -> CandidatesManifest: ...
@overload
def read(path: Path | str, stage: Literal["verify_duplicates"], /) -> NearDuplicatesManifest: ...
@overload
def read(path: Path | str, stage: Literal["list_items"], /) -> ItemsManifest: ...
@overload
def read(path: Path | str, stage: Literal["tokenize"], /) -> PartManifest: ...
@overload
def read(path: Path | str, stage: Literal["index"], /) -> CorpusManifest: ...
@overload
def read(path: Path | str, stage: Literal["find_overlaps"], /) -> OverlapsManifest: ...
@overload
def read(path: Path | str, stage: Literal["find_contamination"], /) -> ContaminationManifest: ...
@overload
def read(
    path: Path | str,
    pretrain: Literal["pretrain"],
    finetune: Literal["finetune"] = ...,
    average_weights: Literal["average_weights"] = ...,
    /,
) -> ModelManifest: ...
@overload
def read(path: Path | str, stage: Literal["predict"], /) -> PredictionManifest: ...
@overload
def read(path: Path | str, stage: Literal["convert"], /) -> ExportManifest: ...
@overload
def read(path: Path | str, stage: Literal["evaluate"], /) -> EvaluationManifest: ...
@overload
def read(path: Path | str, stage: Literal["describe"], /) -> CardManifest: ...
@overload
def read(path: Path | str, *stages: str) -> Manifest: ...
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
    made: Manifest = Manifest(Path(path), data["stage"], data["identity"], data["record"])
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


def content(stage: str, identity: Mapping[str, Any], record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest of the stage named `stage` as plain data."""
    made: Manifest = Manifest(Path(), stage, identity, record)
    return {"format": FORMAT, "stage": stage, "identity": identity, "record": record, "sha256": made.sha256}


def write(path: Path | str, stage: str, identity: Mapping[str, Any], record: Mapping[str, Any]) -> None:
    """Write a manifest of the stage named `stage` atomically. Relative paths in it start from its directory."""
    files.write_json(path, content(stage, identity, record))


class Clock:
    """Timer of a stage, from its start; makes the record of its manifest."""

    def __init__(self, code: str | None = None) -> None:
        self.code = code
        self.started = time.time()
        self.cpu = time.process_time()

    def record(self) -> types.Record:
        """Return the record of a manifest: seconds, versions, host, an allow-list of the environment."""
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
