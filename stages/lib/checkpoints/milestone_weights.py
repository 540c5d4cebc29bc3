"""The weights of a milestone that is exported."""

from pathlib import Path

from stages.lib.checkpoints import dcp, find_model
from stages.lib.checkpoints.adapter import Adapter
from stages.lib.checkpoints.commit import COMMIT, read_commit, verify
from stages.lib.errors import UserError
from stages.lib.huggingface.export import Read


def read_weights(directory: Path, merge: bool, base: Path | None) -> tuple[Read, Adapter | None]:
    """(reader, adapters) of a checkpoint: with LoRA, the weights of the base with the adapters added.

    `merge`: False if the adapters stay apart as well. `base`: the path of the base, if it was moved. Raises UserError
    if there are no adapters to which these could apply, or a file of the base changed.
    """
    if "adapter" not in read_commit(directory):
        for given, key in ((not merge, "convert.merge must be true"), (base, "--base must be left out")):
            if given:
                raise UserError(f"{key} for a model that was not trained with LoRA, as {directory}")
        return dcp.model_reader(directory), None
    found = find_model.find(directory, base=base)
    assert found.adapter is not None
    _verify_bases(found.adapter)
    return found.read, found.adapter


def _verify_bases(adapter: Adapter) -> None:
    """Raise UserError if a file changed of the base, or of the base that this was trained beside, and so on."""
    above: Adapter | None = adapter
    while above is not None and (above.base / COMMIT).exists():  # other models were hashed when they were found
        verify(above.base, read_commit(above.base))
        above = find_model.find(above.base).adapter
