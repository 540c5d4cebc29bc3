"""Refuse an installation that copies the packages: without the checkout there is no workflow, profile or config."""

import sys

from setuptools import setup
from setuptools.command.build_py import build_py


class InPlace(build_py):
    """The packages as files of the checkout, for `pip install -e .`; pyproject.toml has everything else."""

    def run(self) -> None:
        """Exit with a sentence unless the installation is editable."""
        if not self.editable_mode:
            sys.exit("caravan runs from its checkout and cannot be installed as a copy: use `pip install -e .` instead")
        super().run()


setup(cmdclass={"build_py": InPlace})
