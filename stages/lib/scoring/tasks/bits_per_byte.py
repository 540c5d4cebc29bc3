"""Bits per byte of validation text: one rolling task per source."""

from __future__ import annotations

from stages.lib.scoring.tasks import task_files
from stages.lib.scoring.tasks.task import Row, TaskOptions, TextTask, ValidationText
from stages.lib.scoring.tasks.text_pieces import first_bytes


class BitsPerByte(TextTask):
    """The bits that a model needs per byte of text, which do not depend on the tokenizer: bits_per_byte_SOURCE."""

    name = "bits_per_byte"
    metric = "bits_per_byte"
    description = "bits per byte of validation text"
    format = task_files.ROLLING

    def matches(self, harness_task: str) -> bool:
        """Return True for bits_per_byte_SOURCE."""
        return harness_task.startswith(f"{self.name}_")

    def rows(self, text: ValidationText, options: TaskOptions) -> dict[str, list[Row]]:
        """Make the rows of each source: `bytes_per_source` bytes of its pieces."""
        return {
            f"{self.name}_{source}": first_bytes(pool, options.bytes_per_source) for source, pool in text.pools.items()
        }
