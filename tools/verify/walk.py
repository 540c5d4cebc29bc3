"""The walk from a manifest back to the raw files, which are read again: one line per link, each manifest once."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.huggingface.export_directory import CARD_MANIFEST
from stages.lib.manifest import MODELS, CorpusManifest, ListManifest, Manifest, PartManifest
from stages.lib.manifest_types import InputFile
from stages.lib.render.numbers import several
from stages.lib.sources import source, spans, storage
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.spans import Span
from stages.lib.space import amount
from stages.registry import STAGES, producer
from tools.verify import checks, payload
from tools.verify.places import Link, Places, stage_of


def links_of(result: Manifest, root: Path) -> Iterator[Link]:
    """Yield the links of a manifest to others; parts of a corpus are not among them. `root`: the results directory.

    Manifests of one run lie beside each other, so that a path tells the other's. Those of other sections of the config
    may have any name: they are looked up by their digests.
    """
    if result.stage == "summarize":
        links = []
        for path, digest in result.identity["inputs"].items():
            rule, _ = producer(os.path.relpath(result.directory / path, root)) or ("evaluate", {})
            links.append(Link(STAGES[rule].makes, digest, result.directory / path))
        order = [stage.makes for stage in STAGES.values()]
        # those that were made last come first, so that the tree goes from a score back
        yield from sorted(links, key=lambda link: order.index(link.what), reverse=True)
        return
    _, wildcards = producer(os.path.relpath(result.path, root)) or ("", {})
    for key, what in stage_of(result).inputs.items():
        other = next(stage for stage in STAGES.values() if stage.makes == what)
        for name, digest in _digests(result.identity.get(key), key):
            place = None
            # averaged weights are made of models of another run
            if "run" in wildcards and "{run}" in other.output and other.output != stage_of(result).output:
                with contextlib.suppress(KeyError):  # another run
                    place = root / other.output.format(**{"suite": name} | wildcards)
            yield Link(what, digest, place)


def _digests(value: Any, name: str) -> Iterator[tuple[str, str]]:
    """Yield (name, digest) of a key of an identity: one digest, one with other figures, or those of several names."""
    if isinstance(value, str):
        yield name, value
    elif name == "tokenizer" and value:
        yield name, value["digest"]
    else:
        for below, digests in (value or {}).items():
            yield from _digests(digests, below)


DUPLICATES = {"duplicates": "hashes", "near_duplicates": "near_duplicates"}


def parts_of(corpus: CorpusManifest, places: Places) -> Iterator[PartManifest | UserError]:
    """Yield the manifests of the parts that hold the files of a corpus, an error in place of one that differs."""
    beside = corpus.record.get("files", {})  # made by the index, of no part
    files = {name: file for name, file in payload.files_of(corpus).items() if name not in beside}
    by_part: dict[str, dict[str, tuple[int, str]]] = defaultdict(dict)
    for name, file in files.items():
        by_part[os.path.dirname(name)][name] = file
    for directory, expected in sorted(by_part.items()):
        path = corpus.directory / f"{directory}.json"
        try:
            if not path.exists():
                raise UserError(f"{path} is missing, and {corpus.path} was made from it")
            part = places.read(path)
            shards = payload.files_of(part).items()
            if {os.path.relpath(part.directory / name, corpus.directory): file for name, file in shards} != expected:
                raise UserError(f"{path} has other shards than the part that {corpus.path} was made from")
            if part.identity["tokenizer"] != corpus.identity["tokenizer"]:
                raise UserError(f"{path} has another tokenizer than {corpus.path}")
            yield part
        except UserError as error:
            yield error
    for name in corpus.identity["sources"]:
        if not any(Path(directory).parent.name == name for directory in by_part):
            yield UserError(f"{corpus.path} has no files of the source {name}")


def duplicates_of(part: PartManifest, places: Places) -> Iterator[Manifest]:
    """Yield the manifests of the exact and of the near duplicates that a part left out, if it left out any.

    Raises UserError if one is missing, or lists others.
    """
    identity: Mapping[str, Any] = part.identity
    for key in [key for key in DUPLICATES if key in identity]:
        path = places.root / DUPLICATES[key] / part.path.absolute().parents[1].name / "manifest.json"
        if not path.exists():
            raise UserError(f"{path} is missing, and {part.path} was made from it")
        result = places.read(path)
        if all(sha256 != identity[key] for _, sha256 in payload.files_of(result).values()):
            raise UserError(f"{path} lists other duplicates than {part.path} left out")
        yield result


def sha256_of(kind_name: str, name: str, first: int, end: int | None) -> str:
    """Return the sha256 of the records of a file that begin in its bytes [first, end)."""
    kind = kind_of(SourceRecipe(kind=kind_name, paths=[name]))
    return manifest.describe(kind.root() / name, *kind.extent(Span(name, first, end)))["sha256"]


def check_share(part: PartManifest, listed: ListManifest, recipe: SourceRecipe) -> None:
    """Raise UserError unless a part was made from its share of the listed files: all parts together have them all."""
    every, number = listed.identity["files"], part.identity["part"]
    chosen = source.spans_of_part(recipe, every, number, part.identity["recipe"].get("parts", 1))
    if kind_of(recipe).needs_every_file:
        chosen = spans.whole(file["name"] for file in every)
    expected = [(span.name, span.first, span.end) for span in chosen]
    spans_read = [(file["name"], file.get("first", 0), file.get("end")) for file in part.identity["inputs"]]
    if spans_read != expected:
        raise UserError(f"{part.path} was not made from part {number} of the files of {listed.path}")


def examples_digest(listed: ListManifest, recipe: SourceRecipe) -> str:
    """Return the digest of a source of examples as its files are now; of remote files, as they were listed.

    Raises UserError if a file is missing or has another size.
    """
    inputs: list[InputFile] = []
    for file in listed.identity["files"]:
        if storage.is_remote(file["name"]):
            inputs.append({"name": file["name"], "bytes": file["bytes"], "etag": listed.record["etags"][file["name"]]})
        else:
            inputs += source.described_inputs(recipe, listed, [Span(file["name"])])
    return source.digest_of_examples(listed, recipe, inputs)


INDENT = "  "
SHOWN = 12
"""Characters of a digest that the tree shows."""


@dataclass
class Proven:
    """Findings of the walk. `files`, `raw`: {path: bytes} of files that are whole. `faults`, `unproven`: sentences."""

    manifests: int = 0
    files: dict[str, int] = field(default_factory=dict)
    raw: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    unproven: list[str] = field(default_factory=list)

    def sentence(self) -> str:
        """Return what is proven, in a sentence."""
        return (
            f"{several(self.manifests, 'manifest')}, {several(len(self.files), 'file')} "
            f"({amount(sum(self.files.values()))}) and {several(len(self.raw), 'raw file')} "
            f"({amount(sum(self.raw.values()))}) are as their digests say"
        )


class Walk:
    """A walk over the manifests of one results directory. `tree` yields its lines while files are read.

    `manifests`: {path: manifest} in the order of the walk. `made_from`: {path: paths of those that it was made from}.
    """

    def __init__(self, places: Places) -> None:
        self.places = places
        self.proven = Proven()
        self.manifests: dict[Path, Manifest] = {}
        self.made_from: dict[Path, list[Path]] = defaultdict(list)
        self._above: list[Manifest] = []
        self._hash_of = functools.cache(sha256_of)  # several corpora, or parts, may hold a file
        self._broken: set[tuple[str, str]] = set()
        self._read: dict[str, tuple[int, str]] = {}
        self._stages: dict[str, str] = {}
        self._records: set[str] = set()

    def tree(self, result: Manifest) -> Iterator[str]:
        """Yield the lines of the whole walk from a manifest."""
        yield from self.lines(result)
        stages = [stage for path, stage in self._stages.items() if path not in self._records]
        if stages:
            text = (
                f"the records (times, versions, counts) of {several(len(stages), 'manifest')} of "
                f"{', '.join(sorted(set(stages)))}: each has its own sha256, and no manifest above it has that"
            )
            yield self._told(checks.Finding(text, wrong=False), result, 1)

    def lines(self, result: Manifest, depth: int = 0) -> Iterator[str]:
        """Yield the lines of a manifest and of all that it was made from."""
        shown = f"{INDENT * depth}{_shown(result.path)}"
        place = result.path.resolve()
        del self._above[depth:]
        # an export's card is shown below it, and was made from it
        if depth and (self._above[-1].stage, result.stage) != ("convert", "describe"):
            self.made_from[self._above[-1].path.resolve()].append(place)
        self._above.append(result)
        if place in self.manifests:
            yield f"{shown} (above)"
            return
        self.manifests[place] = result
        findings = list(checks.findings(result, self.places))
        self.proven.manifests += 1
        if depth:
            self._stages[_shown(result.path)] = result.stage
        described, logs = payload.files_of(result), payload.logs_of(result)
        sizes = [size for size, _ in (described | logs).values()]
        total = f", {several(len(sizes), 'file')}, {amount(sum(sizes))}" if sizes else ""
        yield f"{shown}: {result.stage} {result.digest[:SHOWN]}{total}"
        if any(finding.wrong for finding in findings):
            described.pop(checks.SCORES, None)  # a sentence on a row tells more than one on the file
        faults = [*self._faults(result, described), *self._faults(result, logs, logs=True)]
        yield from (self._wrong(fault, depth + 1) for fault in faults)
        yield from (self._told(finding, result, depth + 1) for finding in findings)
        yield from self._below(result, depth + 1)

    def _faults(self, result: Manifest, described: payload.Described, logs: bool = False) -> list[str]:
        """Return what is wrong with the files of a manifest. Shards are files of a part and of a corpus: read once."""
        places = {name: os.path.normpath(result.directory / name) for name in described}
        new = {name: file for name, file in described.items() if self._read.get(places[name]) != file}
        self._read |= {places[name]: file for name, file in new.items()}
        faults = payload.faults_of(result, new, logs)
        if not faults:
            self.proven.files |= {places[name]: size for name, (size, _) in new.items()}
        return faults

    def _below(self, result: Manifest, depth: int) -> Iterator[str]:
        """Yield the lines of all that a manifest was made from."""
        named = result.record.get("manifests", {})
        self._records |= {os.path.normpath(result.directory / path) for path in named}
        for link in links_of(result, self.places.root):
            yield from self._of_link(link, result, depth)
        yield from self._of_records(result, named, depth)
        if result.stage == "index":
            for part in parts_of(result, self.places):
                yield from [self._wrong(str(part), depth)] if isinstance(part, UserError) else self.lines(part, depth)
        elif result.stage == "tokenize":
            yield from self._of_part(result, depth)
        elif result.stage in MODELS:
            yield from self._of_initial(result, depth)
        elif result.stage == "convert" and (card := result.directory / CARD_MANIFEST).exists():
            try:
                yield from self.lines(self.places.read(card), depth)
            except UserError as error:
                yield self._wrong(str(error), depth)
        # the sources that a model was tuned on, a classifier trained on, or a suite read pairs from
        digests = dict(result.identity.get("tuned_on") or result.identity.get("trained_on") or {})
        if isinstance(pairs := result.identity.get("prompt_completion"), str):
            digests["*"] = pairs
        for name, digest in digests.items():
            yield from self._of_source(name, digest, result, depth)

    def _of_link(self, link: Link, result: Manifest, depth: int) -> Iterator[str]:
        if (link.what, link.digest) in self._broken:
            yield f"{INDENT * depth}{link.what} {link.digest[:SHOWN]} (above)"
            return
        try:
            other = self.places.find(link, result)
        except UserError as error:
            self._broken.add((link.what, link.digest))
            yield self._wrong(str(error), depth)
            return
        yield from self.lines(other, depth)

    def _of_records(self, result: Manifest, named: Mapping[str, str], depth: int) -> Iterator[str]:
        """Yield the lines of manifests whose record differs from the one that a manifest was made from."""
        for path, sha256 in named.items():
            place = Path(os.path.normpath(result.directory / path))
            try:
                other = self.places.read(place)
            except UserError:
                continue  # its link is named
            inputs: Mapping[str, str] = result.identity.get("inputs", {})
            if other.sha256 != sha256 and other.digest == inputs.get(path, other.digest):
                yield self._wrong(
                    f"{place} was written again since {result.path} was made from it: its results are equal, and its "
                    "record (figures, versions, times) is not; run the workflow again",
                    depth,
                )

    def _of_initial(self, result: Manifest, depth: int) -> Iterator[str]:
        """Yield the lines of the milestone that a training started from; one at a path is not in these results."""
        if (digest := result.identity.get("initial")) is None:
            return

        def digest_by(other: Manifest) -> str:
            return manifest.checkpoint_digest(other) if other.stage in MODELS else ""

        try:
            initial = self.places.find(Link("model", digest, digest_by=digest_by), result)
        except UserError:
            text = f"the initial model {digest[:SHOWN]}: no milestone of these results has this digest"
            yield self._told(checks.Finding(text, wrong=False), result, depth)
            return
        yield from self.lines(initial, depth)

    def _of_part(self, result: PartManifest, depth: int) -> Iterator[str]:
        """Yield the lines of a part's list, raw files and duplicates."""
        link = Link(
            "list", result.record["list"], self.places.root / "sources" / result.identity["source"] / "list.json"
        )
        try:
            listed = self.places.find(link, result)
            yield from self.lines(listed, depth)
            recipe = source.recipe_of(listed)
            check_share(result, listed, recipe)
        except UserError as error:
            yield self._wrong(str(error), depth)
            return
        yield from self._of_raw_files(result, recipe, depth)
        try:
            for duplicates in duplicates_of(result, self.places):
                yield from self.lines(duplicates, depth)
        except UserError as error:
            yield self._wrong(str(error), depth)

    def _of_raw_files(self, part: PartManifest, recipe: SourceRecipe, depth: int) -> Iterator[str]:
        """Yield the lines of the raw files of a part, which are read again; the content of URLs is not."""
        whole: dict[str, int] = {}
        faults, num_remote, root = [], 0, kind_of(recipe).root()
        for described in part.identity["inputs"]:
            path, first, end = root / described["name"], described.get("first", 0), described.get("end")
            try:
                if "etag" in described:
                    num_remote += 1
                elif not path.is_file():
                    faults.append(
                        f"{path} is missing, and {part.path} was made from it (paths start from this directory)"
                    )
                elif self._hash_of(recipe.kind, described["name"], first, end) != described["sha256"]:
                    faults.append(f"{path} changed since {part.path} was made from it: its sha256 differs")
                else:
                    span = f" [{first}:]" if "first" in described else ""
                    whole[f"{described['name']}{span}"] = described["bytes"]
            except UserError as error:
                faults.append(str(error))
        if whole:
            yield self._raw_line(part.identity["source"], whole, depth)
        yield from (self._wrong(fault, depth) for fault in faults)
        if num_remote:
            yield self._told(_remote(num_remote), part, depth)

    def _of_source(self, name: str, digest: str, result: Manifest, depth: int) -> Iterator[str]:
        faults = []
        for path in sorted(self.places.root.glob(f"sources/{name}/list.json")):
            try:
                listed = self.places.read(path)
                if examples_digest(listed, source.recipe_of(listed)) != digest:
                    continue
            except UserError as error:
                faults.append(str(error))
                continue
            yield from self.lines(listed, depth)
            files = listed.identity["files"]
            if num_remote := sum(storage.is_remote(file["name"]) for file in files):
                yield self._told(_remote(num_remote), result, depth)
            else:
                whole = {file["name"]: file["bytes"] for file in files}
                yield self._raw_line(listed.identity["source"], whole, depth)
            return
        at = self.places.root / f"sources/{name}/list.json"
        other = f"{at} or its files differ from those that {result.path} was made from"
        yield self._wrong(faults[0] if faults and name != "*" else other, depth)

    def _raw_line(self, source: str, whole: dict[str, int], depth: int) -> str:
        self.proven.raw |= whole
        return f"{INDENT * depth}{several(len(whole), 'raw file')} of {source}, {amount(sum(whole.values()))}"

    def _wrong(self, sentence: str, depth: int) -> str:
        self.proven.faults.append(sentence)
        return f"{INDENT * depth}WRONG {sentence}"

    def _told(self, finding: checks.Finding, result: Manifest, depth: int) -> str:
        if finding.wrong:
            return self._wrong(finding.text, depth)
        self.proven.unproven.append(f"{_shown(result.path)}: {finding.text}")
        return f"{INDENT * depth}not proven: {finding.text}"


def _remote(number: int) -> checks.Finding:
    files = several(number, "remote file")
    return checks.Finding(f"the content of {files}: etags are kept, and nothing is read again", False)


def _shown(path: Path) -> str:
    return os.path.normpath(path)
