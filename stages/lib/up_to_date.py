"""A stage that finds its result made already writes the same manifest again, and does no work.

Snakemake deletes a declared output before each attempt, so a copy of the manifest is kept beside the payload.
"""

from stages.lib import files, manifest
from stages.lib.errors import UserError
from stages.lib.log import logger


def restore(copy, output, wanted, record):
    """Write the kept manifest to `output` when it says what would be made now; returns whether it did.

    `wanted`: the part of the identity that is known before the work. `record`: the record that would be written now;
    code and versions must be the same, since a changed stage may come to another result: without --code, as by hand,
    the work is done. All outputs must be unchanged.
    """
    if record["code"] is None or not copy.exists():
        return False
    try:
        kept = manifest.read(copy)
    except UserError:
        return False
    same = all(kept.identity.get(name) == value for name, value in wanted.items())
    if not same or any(kept.record.get(name) != record[name] for name in ("code", "versions")):
        return False
    for name, described in kept.identity["outputs"].items():
        path = output.parent / name
        if not path.exists() or manifest.describe(path) != described:
            return False
    logger.info("%s is finished: nothing to do (delete %s to make it again)", output, copy)
    with files.atomic(output) as file:
        file.write(copy.read_bytes())
    return True
