"""The places of a results directory's manifests, and the search for one by the digest that another names."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest
from stages.registry import STAGES, Stage

SO_FAR = "so_far"
"""The directory of the summary of all that exists, as `stages.summarize --results` writes it."""

MANIFESTS = {stage.makes: stage.pattern for stage in STAGES.values()}
"""{what it describes: the places of the manifests, below the results directory}"""


def stage_of(result: Manifest) -> Stage:
    """Return the stage that made a manifest: of two rules that run it, the one with a like place for its output."""
    stages = [stage for stage in STAGES.values() if stage.module == f"stages.{result.stage}"]
    return next((stage for stage in stages if result.path.absolute().match(stage.pattern)), stages[0])


@dataclass(frozen=True)
class Link:
    """A manifest, by its digest, that another one was made from.

    `place`: its path, if the other's path tells it; else it is looked up by its digest among MANIFESTS[what].
    `digest_by`: how the digest is computed; most manifests name another by that of its identity.
    """

    what: str
    digest: str
    place: Path | None = None
    digest_by: Callable[[Manifest], str] = operator.attrgetter("digest")


class Places:
    """The manifests of a results directory, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read: Callable[[Path], Manifest] = functools.cache(manifest.read)

    @classmethod
    def of(cls, result: Manifest) -> Places:
        """Return the places of the results directory that a manifest lies in."""
        above = stage_of(result).output.count("/")
        if result.stage == "summarize" and result.path.absolute().parent.name == SO_FAR:
            above += 1
        # relative paths stay relative: messages and the tree show them
        root = result.path.parent
        for _ in range(above):
            root = root.parent if root.name not in ("", "..") else root / ".."
        return cls(root)

    def find(self, link: Link, made_from_it: Manifest) -> Manifest:
        """Return the manifest of a link. Raises UserError if it is missing, damaged or another."""
        if link.place is not None:
            if not link.place.exists():
                raise UserError(f"{link.place} is missing, and {made_from_it.path} was made from it")
            other = self.read(link.place)
            if (digest := link.digest_by(other)) != link.digest:
                raise UserError(
                    f"{link.place} differs from the {link.what} that {made_from_it.path} was made from (digest "
                    f"{link.digest:.12}): its digest is {digest:.12}"
                )
            return other
        damaged: list[UserError] = []
        for path in sorted(self.root.glob(MANIFESTS[link.what])):
            try:
                candidate = self.read(path)
            except UserError as error:
                damaged.append(error)
                continue
            if link.digest_by(candidate) == link.digest:
                return candidate
        if damaged:
            raise damaged[0]
        raise UserError(
            f"{self.root / MANIFESTS[link.what]} does not have the {link.what} that {made_from_it.path} was made from "
            f"(digest {link.digest:.12}): it is missing, or was made again"
        )
