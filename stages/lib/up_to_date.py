"""Up-to-date check: a stage whose result exists writes the same manifest again and does no work.

Snakemake deletes a declared output before each attempt, so a copy of the manifest is kept beside the payload.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.manifest_types import Record


def restore(copy: Path, output: Path, expected: Mapping[str, Any], record: Record) -> bool:
    """Write the kept manifest to `output` if it describes the result to be made; return True if it does.

    `expected`: the part of the identity that is known before the work. `record`: the record that would be written now;
    code and versions must be equal, since a changed stage may give another result. Without --code, as by hand, the work
    is always done. All outputs, and the files of its record, must be unchanged.
    """
    if record["code"] is None or not copy.exists():
        return False
    try:
        kept = manifest.read(copy)
    except UserError:
        return False
    same = all(kept.identity.get(name) == value for name, value in expected.items())
    if not same or (kept.record.get("code"), kept.record.get("versions")) != (record["code"], record["versions"]):
        return False
    for name, described in (kept.identity["outputs"] | kept.record.get("files", {})).items():
        path = output.parent / name
        if not path.exists() or manifest.describe(path) != described:
            return False
    logger.info("%s is up to date (delete %s to make it again)", output, copy)
    with files.atomic(output) as file:
        file.write(copy.read_bytes())
    return True
