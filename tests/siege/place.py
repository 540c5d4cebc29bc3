"""Copies of the finished chain, in which one stage is attacked."""

import shutil
from pathlib import Path

from tests.helpers import forked
from tests.siege import chain


class Fault(Exception):
    """The undisturbed chain itself did not end as it should."""


class Place:
    """A working directory with the chain's results."""

    def __init__(self, directory):
        self.directory = directory

    @classmethod
    def finished(cls, directory):
        """Run the chain undisturbed."""
        directory.mkdir(parents=True)
        chain.write_texts(directory)
        place = cls(directory)
        for step in chain.steps():
            ended = place.run(step)
            if ended.code:
                raise Fault(f"the undisturbed {step.stage} ended with {ended.code}: {ended.text}")
        return place

    def copy(self, directory):
        """Return a copy in `directory`, which is replaced."""
        shutil.rmtree(directory, ignore_errors=True)
        shutil.copytree(self.directory, directory, symlinks=True)
        return Place(directory)

    def run(self, step, prepare=None, arguments=None):
        """Run one stage here; `arguments` replace its own. Returns how it ended."""
        call = step.run if arguments is None else chain.Step(step.stage, tuple(arguments), ()).run
        return forked.run(call, self.directory, step.ranks, prepare)

    def before(self, step):
        """Delete what the stage made: its manifest, what stands beside it, and what it made elsewhere."""
        for name in step.made:
            path = self.directory / name
            for found in (path, path.with_suffix("")):
                _delete(found)
        if step.stage in ("train_tokenizer", "convert"):  # these fill the manifest's directory
            shutil.rmtree((self.directory / step.made[0]).parent)
        return self

    def results(self):
        """Return {path: digest} of the results."""
        return chain.results_of(self.directory)

    def inputs_of(self, step):
        """Return the files that stand before the stage runs, without the raw texts: whoever changes those wants it."""
        return sorted(path for path in (self.directory / "results").rglob("*") if path.is_file())


def _delete(path: Path):
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
