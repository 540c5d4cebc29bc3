"""The manifests that a manifest was made from, by the digests in its identity."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from stages.lib import manifest
from stages.lib.chain.places import MANIFESTS, Link
from stages.lib.manifest import Manifest

ORDER = ("evaluation", "prediction", "baseline", "contamination", "export", "model", "corpus", "list")
"""Inputs of the summary: first those that were made last, so that the tree goes from a score back."""


def links_of(made: Manifest, root: Path) -> Iterator[Link]:
    """Yield the links of a manifest to others, by its stage; parts of a corpus are not among them (`parts.py`).

    `root`: the results directory.
    """
    folders = [folder.name for folder in made.path.absolute().parents]
    if made.stage == "summarize":
        found = [
            Link(_kind_of(path), digest, made.directory / path) for path, digest in made.identity["inputs"].items()
        ]
        yield from sorted(found, key=lambda link: ORDER.index(link.what))
    elif made.stage == "describe":
        yield from _of_card(made, root / "runs" / folders[2])
    elif made.stage == "evaluate" and "export" in made.identity:
        place = root / "runs" / folders[2] / "export" / folders[0] / "manifest.json"
        yield Link("export", made.identity["export"], place)
    elif made.stage == "convert":
        yield Link("model", made.identity["model"], root / "runs" / folders[2] / "models" / f"{folders[0]}.json")
    elif made.stage == "predict":
        yield from (Link("model", digest) for digest in made.identity["models"].values())
    elif made.stage == "select_best":
        yield Link("model", made.identity["model"])
    yield from _of_data(made.identity)


def _kind_of(path: str) -> str:
    """Return the kind of a manifest of the summary by its path."""
    found = (kind for kind, pattern in MANIFESTS.items() if PurePosixPath(path).match(pattern))
    return next(found, "evaluation")


def _of_card(made: Manifest, run: Path) -> Iterator[Link]:
    identity, step = made.identity, made.directory.absolute().name
    yield Link("export", identity["export"], made.directory / "manifest.json")
    for suite, digest in identity["evaluations"].items():
        yield Link("evaluation", digest, run / "eval" / step / f"{suite}.json")
    for digests in identity["baselines"].values():
        for digest in digests.values():
            yield Link("baseline", digest)
    for digest in identity["contamination"].values():
        yield Link("contamination", digest)
    for digest in identity["lists"].values():
        yield Link("list", digest)


def _of_data(identity: dict[str, Any]) -> Iterator[Link]:
    """Yield the links of the keys that several stages have."""
    if isinstance(identity.get("corpus"), str):
        yield Link("corpus", identity["corpus"])
    if isinstance(tokenizer := identity.get("tokenizer"), dict):
        tokenizer = tokenizer["digest"]
    if tokenizer is not None:
        yield Link("tokenizer", tokenizer)
    for digest in identity.get("decontaminate", {}).values():
        yield Link("items", digest)
    if isinstance(identity.get("items"), str):
        yield Link("items", identity["items"])


def initial_link(made: Manifest) -> Link | None:
    """Return the link to the milestone that a model was trained from; None if it was trained from random weights."""
    digest = made.identity.get("initial")
    return None if digest is None else Link("model", digest, digest_by=_checkpoint_digest)


def _checkpoint_digest(made: Manifest) -> str:
    return manifest.checkpoint_digest(made) if made.stage in manifest.TRAINING else ""
