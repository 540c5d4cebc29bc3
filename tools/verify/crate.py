"""A Workflow Run RO-Crate of a verified chain: `ro-crate-metadata.json`, and the rules of the workflow beside it.

The crate is the results directory itself. It conforms to Provenance Run Crate 0.5 (https://w3id.org/ro/wfrun), and so
to Workflow Run Crate and Process Run Crate: one action per manifest, from the files that it was made from to those that
it describes, each with its sha256. Raw files are named as a collection per source; the manifests have their digests.
"""

from __future__ import annotations

import json
import mimetypes
import os
import shutil
import urllib.parse
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.manifest import MODELS, Manifest
from stages.lib.render.numbers import several
from stages.lib.space import amount
from tools.verify import payload
from tools.verify.places import stage_of
from tools.verify.walk import Walk

METADATA = "ro-crate-metadata.json"
WORKFLOW = "workflow"
"""The directory that the rules are copied to."""

HOME = Path(__file__).resolve().parents[2]
SNAKEFILE = f"{WORKFLOW}/Snakefile"
SHA256 = "https://w3id.org/ro/terms/workflow-run#sha256"
"""The meaning of the key `sha256`, which the context of RO-Crate 1.1 does not have."""

SPECIFICATION, OF_WORKFLOWS = "https://w3id.org/ro/crate/1.1", "https://w3id.org/workflowhub/workflow-ro-crate/1.0"
PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/provenance/0.5": ("Provenance Run Crate", "0.5"),
    OF_WORKFLOWS: ("Workflow RO-Crate", "1.0"),
}
BIOSCHEMAS = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
SNAKEMAKE = {
    "@id": "https://w3id.org/workflowhub/workflow-ro-crate#snakemake",
    "@type": "ComputerLanguage",
    "name": "Snakemake",
    "identifier": {"@id": "https://snakemake.github.io"},
    "url": {"@id": "https://snakemake.github.io"},
}

Entity = dict[str, Any]


def check_absent(root: Path) -> None:
    """Raise UserError if the files of a crate exist, or cannot be written."""
    if existing := [str(path) for path in (root / METADATA, root / WORKFLOW) if os.path.lexists(path)]:
        raise UserError(f"--crate would replace {' and '.join(existing)}: delete or move what exists first")
    files.check_output(root / METADATA)


def write(walk: Walk) -> Path:
    """Write the crate of a chain that holds; return the path of its metadata. Raises UserError without a model."""
    root = walk.places.root
    first = next(iter(walk.manifests.values()))
    if not any(result.stage in MODELS for result in walk.manifests.values()):
        raise UserError(
            f"{first.path} was made from no milestone of a run; --crate must be given what comes after one, such as "
            "scores.csv"
        )
    check_absent(root)
    crate = _Crate(walk)
    graph = [*crate.entities([crate.action(place) for place in reversed(walk.manifests)])]
    with files.atomic_directory(root / WORKFLOW) as making:
        shutil.copy(HOME / SNAKEFILE, making)
        shutil.copytree(HOME / WORKFLOW / "rules", making / "rules", ignore=shutil.ignore_patterns("__pycache__"))
    try:
        context = [f"{SPECIFICATION}/context", {"sha256": SHA256}]
        files.write_json(root / METADATA, {"@context": context, "@graph": graph})
    except BaseException:
        shutil.rmtree(root / WORKFLOW)
        raise
    return root / METADATA


class _Crate:
    def __init__(self, walk: Walk) -> None:
        self.walk = walk
        self.first = next(iter(walk.manifests))
        self.data: dict[str, Entity] = {}
        """By @id: files below the results directory."""
        self.context: dict[str, Entity] = {}
        """By @id: all others that actions name."""
        self.files_of: dict[Path, list[str]] = {place: [] for place in walk.manifests}
        """{manifest: @id of each file that it made}: a corpus has the shards of its parts, which come after it."""
        made_by: dict[str, Path] = {}
        for place, result in walk.manifests.items():
            for name, (size, sha256) in payload.files_of(result).items():
                made_by[self._file(result.directory / name, size, sha256)] = place
            described = manifest.describe(place)
            made_by[self._file(result.path, described["bytes"], described["sha256"])] = place
        for file, place in made_by.items():
            self.files_of[place].append(file)

    def _file(self, path: Path, size: int, sha256: str) -> str:
        """Add a file; return its @id. One outside the results directory is no part of the crate."""
        name = self._name(path)
        inside = not name.startswith("..")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        entity = {
            "@id": urllib.parse.quote(name) if inside else f"#outside/{urllib.parse.quote(path.name)}/{sha256[:12]}",
            "@type": "File" if inside else "CreativeWork",
            "name": name if inside else path.name,
            "contentSize": str(size),
            "encodingFormat": kind,
            "sha256": sha256,
        }
        (self.data if inside else self.context)[entity["@id"]] = entity
        return entity["@id"]

    def _name(self, path: Path) -> str:
        """Return a path from the results directory, in which directories may be links to other disks."""
        return os.path.relpath(os.path.abspath(path), os.path.abspath(self.walk.places.root))

    def _id(self, place: Path) -> str:
        return urllib.parse.quote(self._name(self.walk.manifests[place].path))

    def action(self, place: Path) -> Entity:
        """Return the action that wrote a manifest, and add its tool, recipe and sources to the context."""
        result = self.walk.manifests[place]
        rule, name, inputs = stage_of(result).name, self._id(place), list(dict.fromkeys(self.walk.made_from[place]))
        tool = self._add(f"#stage/{rule}", "SoftwareApplication", name=f"python -m {stage_of(result).module}")
        if version := result.record.get("commit") or result.record.get("code"):
            tool["softwareVersion"] = ", ".join(
                sorted({*tool.get("softwareVersion", "").split(", ")} - {""} | {version})
            )
        objects = [self._id(other) for other in inputs]
        if result.stage != "describe":  # a card has the digests of the lists alone
            lists = [result, *(self.walk.manifests[other] for other in inputs)]
            objects += [self._source(listed) for listed in lists if listed.stage == "list"]
        if recipe := result.identity.get("recipe"):
            value = json.dumps(recipe, sort_keys=True)
            objects.append(self._add(f"#recipe/{name}", "PropertyValue", name="recipe", value=value)["@id"])
        action = {
            "@id": f"#action/{name}",
            "@type": "CreateAction",
            "name": f"{rule} {name}",
            "description": f"{rule} wrote {name}, whose identity has the digest {result.digest}",
            "instrument": {"@id": tool["@id"]},
            "object": _references(objects),
            "result": _references([name, *(file for file in self.files_of[place] if file != name)]),
            "actionStatus": "http://schema.org/CompletedActionStatus",
        }
        if "started" in result.record:
            started = datetime.fromisoformat(result.record["started"])
            ended = started + timedelta(seconds=result.record["seconds"])
            action |= {"startTime": _time(started), "endTime": _time(ended)}
        return action

    def _add(self, entity_id: str, kind: str, **values: Any) -> Entity:
        return self.context.setdefault(entity_id, {"@id": entity_id, "@type": kind, **values})

    def _source(self, listed: Manifest) -> str:
        """Add the raw files of a source as one collection; return its @id."""
        name, described = listed.identity["source"], listed.identity["files"]
        size = sum(file["bytes"] for file in described)
        place = {"@id": urllib.parse.quote(self._name(listed.path))}
        text = (
            f"{several(len(described), 'file')}, {amount(size)}: names and sizes are in {place['@id']}, and the sha256 "
            "of each file in the manifests that were made from it"
        )
        values: Entity = {
            "name": f"raw files of the source {name}",
            "description": text,
            "hasPart": place,
            "mainEntity": place,
        }
        if "license" in listed.record:
            values["license"] = listed.record["license"]
        return self._add(f"#source/{name}", "Collection", **values)["@id"]

    def entities(self, actions: list[Entity]) -> Iterator[Entity]:
        """Yield all entities: the descriptor, the crate, its workflow and the run of it, files, and what these name."""
        rules = [entity["@id"] for entity in self.context.values() if entity["@id"].startswith("#stage/")]
        collections = [entity["@id"] for entity in self.context.values() if entity["@type"] == "Collection"]
        steps = [f"#step/{rule.removeprefix('#stage/')}" for rule in rules]
        first = self._id(self.first)
        inputs, outputs = collections, self.files_of[self.first]
        begun = min(action["startTime"] for action in actions if "startTime" in action)
        ended = max(action["endTime"] for action in actions if "endTime" in action)
        commit = manifest.Clock().record()["commit"]
        run = {
            "@id": "#run",
            "@type": "CreateAction",
            "name": f"the run of the workflow that made {first}",
            "description": self.walk.proven.sentence(),
            "instrument": {"@id": SNAKEFILE},
            "object": _references(inputs),
            "result": _references(outputs),
            "actionStatus": "http://schema.org/CompletedActionStatus",
            "startTime": begun,
            "endTime": ended,
        }
        yield {
            "@id": METADATA,
            "@type": "CreativeWork",
            "about": {"@id": "./"},
            "conformsTo": _references([SPECIFICATION, OF_WORKFLOWS]),
        }
        yield {
            "@id": "./",
            "@type": "Dataset",
            "name": f"Caravan: {first}",
            "description": "A run of Caravan from raw text to what it made, verified file by file when this crate was "
            f"written. Not proven: {'; '.join(self.walk.proven.unproven) or 'nothing'}.",
            "datePublished": ended[:10],
            "license": {"@id": "#license"},
            "conformsTo": _references(PROFILES),
            "mainEntity": {"@id": SNAKEFILE},
            "hasPart": _references([SNAKEFILE, f"{WORKFLOW}/rules/", *sorted(self.data)]),
            "mentions": _references([run["@id"], *(action["@id"] for action in actions), *collections]),
        }
        for name, (title, version) in PROFILES.items():
            yield {"@id": name, "@type": "CreativeWork", "name": title, "version": version}
        yield {
            "@id": SNAKEFILE,
            "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow", "HowTo"],
            "name": "Caravan: raw text to a scored Llama",
            "description": "The rules of the checkout that wrote this crate. The commits that the stages ran at are "
            "those of their applications.",
            **({"version": commit} if commit else {}),
            "license": {"@id": "https://spdx.org/licenses/Apache-2.0"},
            "conformsTo": {"@id": BIOSCHEMAS},
            "encodingFormat": "text/plain",
            "programmingLanguage": {"@id": SNAKEMAKE["@id"]},
            "hasPart": _references(rules),
            "step": _references(steps),
            "input": _references(_parameter(name) for name in inputs),
            "output": _references(_parameter(name) for name in outputs),
        }
        yield {
            "@id": f"{WORKFLOW}/rules/",
            "@type": "Dataset",
            "name": "the rules that the Snakefile includes",
        }
        yield SNAKEMAKE
        yield {"@id": BIOSCHEMAS, "@type": "CreativeWork", "name": "Bioschemas ComputationalWorkflow", "version": "1.0"}
        license_of_code = {"name": "Apache License 2.0", "identifier": "Apache-2.0"}
        yield {"@id": "https://spdx.org/licenses/Apache-2.0", "@type": "CreativeWork", **license_of_code}
        for position, (step, rule) in enumerate(zip(steps, rules, strict=True), 1):
            work = {"workExample": {"@id": rule}, "position": str(position)}
            yield {"@id": step, "@type": "HowToStep", "name": step.removeprefix("#step/"), **work}
        for name in [*inputs, *outputs]:
            entity = self.data.get(name) or self.context[name]
            entity["exampleOfWork"] = {"@id": _parameter(name)}
            yield {
                "@id": _parameter(name),
                "@type": "FormalParameter",
                "name": entity["name"],
                "additionalType": entity["@type"],
                "workExample": {"@id": name},
            }
        yield {"@id": "#license", "@type": "CreativeWork", "name": self._license()}
        yield run
        yield from actions
        yield from self.context.values()
        yield from (self.data[name] for name in sorted(self.data))

    def _license(self) -> str:
        """Return the license of the model by its cards, and those of the sources."""
        results = self.walk.manifests.values()
        of_cards = {result.identity["recipe"].get("license") for result in results if result.stage == "describe"}
        of_sources = [
            f"{result.identity['source']}: {result.record.get('license', 'not declared')}"
            for result in results
            if result.stage == "list"
        ]
        of_model = ", ".join(sorted(filter(None, of_cards))) or "not declared"
        return f"model: {of_model}; text of the sources: {', '.join(sorted(of_sources)) or 'none'}"


def _references(names: Iterable[str]) -> Entity | list[Entity]:
    """Return references to entities; RO-Crate wants no list of one."""
    references = [{"@id": name} for name in names]
    return references[0] if len(references) == 1 else references


def _parameter(name: str) -> str:
    return f"#parameter/{name.removeprefix('#')}"


def _time(time: datetime) -> str:
    return time.isoformat(timespec="seconds")
