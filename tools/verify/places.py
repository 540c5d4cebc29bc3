"""The places of a results directory's manifests, and the search for one by the digest that another names."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from stages.lib import manifest
from stages.lib.errors import UserError
from stages.lib.manifest import Manifest

BASELINES = "baselines"
SO_FAR = "so_far"
"""The directory of the summary of all that exists, as `stages.summarize --results` writes it."""

ABOVE = {
    **{"summarize": 0, "predict": 1},
    **{"list": 2, "train_tokenizer": 2, "index": 2, "list_items": 2, "find_contamination": 2},
    **{"find_duplicates": 2, "select_best": 2, "tokenize": 3, "hash_documents": 3, "pretrain": 3, "finetune": 3},
    **{"convert": 4, "evaluate": 4, "describe": 4, "find_overlaps": 4},
}
"""{stage: number of directories between its manifest and the results directory}"""

MANIFESTS = {
    "model": "runs/*/models/*.json",
    "export": "runs/*/export/*/manifest.json",
    "evaluation": "runs/*/eval/*/*.json",
    "baseline": "baselines/*/*/*.json",
    "corpus": "tokens/*/manifest.json",
    "tokenizer": "tokenizers/*/manifest.json",
    "list": "sources/*/list.json",
    "items": "suites/*/items.json",
    "contamination": "contamination/*/*.json",
    "prediction": "ladders/*.json",
}
"""{what it describes: the places of the manifests, below the results directory}"""


def digest_of_identity(made: Manifest) -> str:
    """Return the digest by which most manifests name another."""
    return made.digest


@dataclass(frozen=True)
class Link:
    """A manifest, by its digest, that another one was made from.

    `place`: its path, if the other's path tells it; else it is looked up by its digest among MANIFESTS[what].
    `digest_by`: how the digest is computed.
    """

    what: str
    digest: str
    place: Path | None = None
    digest_by: Callable[[Manifest], str] = digest_of_identity


class Places:
    """The manifests of a results directory, each read once."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.read = functools.cache(manifest.read)

    @classmethod
    def of(cls, made: Manifest) -> Places:
        """Return the places of the results directory that a manifest lies in."""
        directories = made.path.absolute().parents
        above = ABOVE.get(made.stage, 0)
        if made.stage == "evaluate" and len(directories) > 3 and directories[2].name == BASELINES:
            above -= 1
        if made.stage == "summarize" and directories[0].name == SO_FAR:
            above += 1
        # relative paths stay relative: messages and the tree show them
        root = made.path.parent
        for _ in range(above):
            root = root.parent if root.name not in ("", "..") else root / ".."
        return cls(root)

    def find(self, link: Link, made_from_it: Manifest) -> Manifest:
        """Return the manifest of a link. Raises UserError if it is missing, damaged or another."""
        if link.place is not None:
            return self._at(link, link.place, made_from_it)
        damaged: list[UserError] = []
        for path in sorted(self.root.glob(MANIFESTS[link.what])):
            try:
                found = self.read(path)
            except UserError as error:
                damaged.append(error)
                continue
            if link.digest_by(found) == link.digest:
                return found
        if damaged:
            raise damaged[0]
        raise UserError(
            f"{self.root / MANIFESTS[link.what]} must hold the {link.what} that {made_from_it.path} was made from "
            f"(digest {link.digest:.12}), and it is missing or was made again"
        )

    def _at(self, link: Link, path: Path, made_from_it: Manifest) -> Manifest:
        if not path.exists():
            raise UserError(f"{path} is missing, and {made_from_it.path} was made from it")
        found = self.read(path)
        if (digest := link.digest_by(found)) != link.digest:
            raise UserError(
                f"{path} must be the {link.what} that {made_from_it.path} was made from (digest {link.digest:.12}), "
                f"and is another ({digest:.12})"
            )
        return found
