"""The raw files that a corpus was tokenized from, or a model tuned on, read again and compared with the manifests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import ListManifest, PartManifest
from stages.lib.manifest_types import InputFile
from stages.lib.sources import source, spans, storage
from stages.lib.sources.kinds.registry import kind_of
from stages.lib.sources.source import SourceRecipe
from stages.lib.sources.spans import Span


@dataclass
class RawFiles:
    """Raw files that were compared. `whole`: {name, with its span: bytes} of those that are as in the manifests.

    `faults`: sentences on others. `remote`: number of URLs, whose content is not read again.
    """

    whole: dict[str, int] = field(default_factory=dict)
    remote: int = 0
    faults: list[str] = field(default_factory=list)


def compare(part: PartManifest, recipe: SourceRecipe, hash_of: Callable[..., str]) -> RawFiles:
    """Compare the raw files of a part of a corpus with its manifest. `hash_of`: `sha256_of`, or one that remembers."""
    files, root = RawFiles(), kind_of(recipe).root()
    for described in part.identity["inputs"]:
        path, first, end = root / described["name"], described.get("first", 0), described.get("end")
        try:
            if "etag" in described:
                files.remote += 1
            elif not path.is_file():
                files.faults.append(
                    f"{path} is missing, and {part.path} was made from it (paths start from this directory)"
                )
            elif hash_of(recipe.kind, described["name"], first, end) != described["sha256"]:
                files.faults.append(f"{path} changed since {part.path} was made from it: its sha256 differs")
            else:
                span = f" [{first}:]" if "first" in described else ""
                files.whole[f"{described['name']}{span}"] = described["bytes"]
        except UserError as error:
            files.faults.append(str(error))
    return files


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
