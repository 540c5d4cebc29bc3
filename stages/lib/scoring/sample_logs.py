"""Per-sample logs, and the scores of a suite's tasks until its manifest has all of them.

A log is one compressed JSONL file per task, with what the model was given and answered for each document.

A task may fail, and a job may be killed. The scores of the other tasks then stand in `scored_tasks.json` beside the
logs, each with a digest of all that it depends on, and the next attempt scores the rest alone. The harness is called
once per task, so that the batches of a task, and the bits of its scores, do not depend on the tasks beside it.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest import EvaluationManifest
from stages.lib.manifest_types import Files
from stages.lib.scoring.aggregations import DocumentScores, document_scores

if TYPE_CHECKING:
    from stages.lib.scoring.harness import Scored

DIRECTORY = "samples"
SUFFIX = ".jsonl.gz"

KEYS = {"doc_id": int, "doc_hash": str, "filter": str, "metrics": dict}
"""The keys of a line that are read, and their types."""

Document = tuple[str, int]
"""(task, number of the document in it)"""

Sample = tuple[str, dict[str, Any]]
"""(hash of the document, {metric: value})"""

KEPT = ("doc_id", "doc_hash", "filter", "doc", "target", "arguments", "resps", "filtered_resps")


def path_of(directory: Path, task: str) -> Path:
    """Return the path of a task's log below the directory of its suite."""
    return directory / DIRECTORY / f"{task.replace('/', '_')}{SUFFIX}"


def write(directory: Path, samples: Mapping[str, Iterable[Mapping[str, Any]]]) -> Files:
    """Write the logs of a suite; returns their entries in `outputs` of the suite's manifest, which lies beside it.

    `samples`: {task: documents as the harness logs them}. Equal samples give equal bytes.
    """
    outputs = {}
    for task, documents in samples.items():
        path = path_of(directory, task)
        path.parent.mkdir(exist_ok=True)
        with files.atomic(path, "wb") as file, gzip.GzipFile("", "wb", mtime=0, fileobj=file) as packed:
            for document in documents:
                packed.write(_line(document))
        outputs[path.relative_to(directory.parent).as_posix()] = manifest.describe(path)
    return outputs


def _line(document: Mapping[str, Any]) -> bytes:
    """Return a document as a line of JSON; a number that is not finite is null."""
    kept = {key: document[key] for key in KEPT}
    kept["metrics"] = {name: document[name] for name in document["metrics"]}
    options = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY
    try:
        return orjson.dumps(kept, default=str, option=options)
    except TypeError:  # a lone surrogate, which UTF-8 does not have
        text = json.dumps(kept, default=str, ensure_ascii=False).encode(errors="replace")
        return orjson.dumps(json.loads(text), option=options)


@dataclass(frozen=True)
class SampleLog:
    """The log of a task or of a group: samples by filter and document."""

    samples: dict[str, dict[Document, Sample]]

    origins: dict[Document, str]
    """Of a local task: the document of the corpus that a sample was cut from."""

    def values(self, metric: str) -> dict[Document, tuple[str, Any]]:
        """Return {document: (its hash, value)} of a metric, given as METRIC or METRIC/FILTER; None for no value."""
        name, _, filtered = metric.partition("/")
        found = self.samples.get(filtered or "none", {})
        return {document: (digest, metrics.get(name)) for document, (digest, metrics) in found.items()}

    def scores(self, metric: str, documents: Iterable[Document] | None = None) -> DocumentScores | None:
        """Return the scores of documents (default: all) by a metric; None if it is not a function of a sum.

        Samples that are cut from one document of a corpus are not independent, and count as one.
        """
        values = self.values(metric)
        chosen = [*values] if documents is None else [*documents]
        origins = [self.origins.get(document, str(document)) for document in chosen]
        return document_scores(metric, [values[document][1] for document in chosen], origins)


@dataclass(frozen=True)
class AveragedEvaluation(EvaluationManifest):
    """The last of several evaluations of a run, with the means of their scores (results/averages.py)."""

    milestones: tuple[EvaluationManifest, ...] = ()
    """The evaluations that are averaged, by step."""


def mean_of(logs: Sequence[SampleLog]) -> SampleLog:
    """Return the documents of several logs, each metric of a document as its mean over the logs.

    A document whose hash differs, or that a log lacks, is left out; a value that has no mean is None.
    """
    first, *others = logs
    samples: dict[str, dict[Document, Sample]] = {}
    for filtered, of_filter in first.samples.items():
        for document, (digest, metrics) in of_filter.items():
            several = [log.samples.get(filtered, {}).get(document, ("", {})) for log in others]
            if all(other == digest for other, _ in several):
                means = {name: _mean([value, *(of_other.get(name) for _, of_other in several)])
                         for name, value in metrics.items()}  # fmt: skip
                samples.setdefault(filtered, {})[document] = digest, means
    return SampleLog(samples, first.origins)


def _mean(values: Sequence[Any]) -> Any:
    """Return the mean of numbers, or of lists of equally many numbers; None of anything else."""
    if all(isinstance(value, int | float) for value in values):
        return math.fsum(values) / len(values)
    if all(isinstance(value, list) for value in values) and len({*map(len, values)}) == 1:
        means = [_mean(column) for column in zip(*values, strict=True)]
        return None if None in means else means
    return None


def read_logs(evaluation: EvaluationManifest, suite: str, task: str, is_required: bool = True) -> SampleLog | None:
    """Read the log of a task, or those of a group's tasks; None if the evaluation has none, as those of older versions.

    Of an averaged evaluation, return the mean of the milestones' logs. Raises UserError if a log changed since the
    evaluation's manifest was written, is not valid or, if it `is_required`, is missing.
    """
    if isinstance(evaluation, AveragedEvaluation):
        logs = [read_logs(one, suite, task, is_required) for one in evaluation.milestones]
        known = [log for log in logs if log is not None]
        return mean_of(known) if len(known) == len(logs) else None
    outputs = evaluation.identity.get("outputs", {})
    members = evaluation.identity.get("groups", {}).get(task, [task])
    names = [path_of(Path(suite), member).as_posix() for member in members]
    paths = [evaluation.directory / name for name in names]
    if not set(names) <= set(outputs) or not (is_required or all(path.exists() for path in paths)):
        return None
    log = SampleLog({}, {})
    for name, path in zip(names, paths, strict=True):
        manifest.check_content(path, outputs[name], evaluation.path)
        _read_into(log, path, is_local=task in evaluation.identity.get("trivial", {}))
    return log


def _read_into(log: SampleLog, path: Path, is_local: bool) -> None:
    task = path.name.removesuffix(SUFFIX)
    for number, line in _lines(path):
        where = f"{path} line {number}"
        try:
            entry = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            raise UserError(f"{where} is not valid JSON: {error}") from None
        for key, kind in KEYS.items():
            if not isinstance(entry, dict) or not isinstance(entry.get(key), kind):
                raise UserError(f"{where} has no {key} ({kind.__name__})")
        of_filter = log.samples.setdefault(entry["filter"], {})
        document = (task, entry["doc_id"])
        if document in of_filter:
            raise UserError(f"{path} line {number} repeats document {entry['doc_id']}")
        of_filter[document] = (entry["doc_hash"], entry["metrics"])
        if is_local and isinstance(entry.get("doc"), dict) and "document" in entry["doc"]:
            log.origins[document] = str(entry["doc"]["document"])


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    number = 0
    try:
        with gzip.open(path) as file:
            for number, line in enumerate(file, 1):
                yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{path} line {number + 1} cannot be decompressed: {error}") from None


FILE = "scored_tasks.json"


@dataclass(frozen=True)
class KeptScores:
    """The tasks of a suite that are scored."""

    directory: Path
    """The directory of the suite: of its logs and local tasks."""

    keys: Mapping[str, str]
    """{task: digest of all that its scores depend on}, in the suite's order."""

    tasks: dict[str, dict[str, Any]]
    """{task that is scored: its part of the manifest}"""

    @property
    def path(self) -> Path:
        """Return the path of the file."""
        return self.directory / FILE

    @property
    def missing(self) -> list[str]:
        """Return the tasks that are not scored."""
        return [task for task in self.keys if task not in self.tasks]

    def add(self, task: str, scored: Scored) -> None:
        """Write the logs and the scores of a task."""
        outputs = write(self.directory, scored.samples)
        part = {field.name: getattr(scored, field.name) for field in dataclasses.fields(scored)}
        del part["samples"]
        self.tasks[task] = part | {"outputs": outputs}
        files.write_json(self.path, {task: [self._seal(task, part), part] for task, part in self.tasks.items()})

    def _seal(self, task: str, part: Any) -> str:
        """Return the digest of a task's scores and of all that they depend on."""
        return manifest.digest_of([self.keys[task], part])

    def merged(self) -> dict[str, Any]:
        """Return the part of the suite's manifest that its tasks make."""
        names = ("results", "groups", "versions", "num_fewshot", "exchanged_contexts", "outputs")
        merged: dict[str, Any] = {name: {} for name in names}
        for task in self.keys:
            for name in names:
                merged[name] |= self.tasks[task][name]
        merged["task_versions"] = merged.pop("versions")
        if not merged["exchanged_contexts"]:
            del merged["exchanged_contexts"]
        return merged


def read_kept(directory: Path, keys: Mapping[str, str]) -> KeptScores:
    """Return the scores that an earlier attempt left with the same keys and unchanged logs; other logs are deleted."""
    kept = KeptScores(directory, keys, {})
    for task, entry in files.read_cache(kept.path).items():
        if isinstance(entry, list) and len(entry) == 2 and task in keys and entry[0] == kept._seal(task, entry[1]):
            paths = {directory.parent / name: described for name, described in entry[1]["outputs"].items()}
            if all(path.exists() and manifest.describe(path) == described for path, described in paths.items()):
                kept.tasks[task] = entry[1]
    logs = {directory.parent / name for part in kept.tasks.values() for name in part["outputs"]}
    for path in (directory / DIRECTORY).glob("*"):
        if path not in logs:
            path.unlink()
    if kept.tasks:
        advice = f"delete {kept.path} to score them again"
        logger.info("%s: scored in an earlier attempt (%s)", ", ".join(kept.tasks), advice)
    return kept
