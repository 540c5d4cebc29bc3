"""The schema and the config's README agree with the stages' recipes."""

import subprocess
import sys

import pytest

from tests.workflow.checkout import HOME


@pytest.fixture(scope="module")
def generated(tmp_path_factory):
    path = tmp_path_factory.mktemp("generated")
    subprocess.run([sys.executable, HOME / "workflow/scripts/generate_schema.py", path], check=True, timeout=120)
    return path


@pytest.mark.parametrize("name", ["workflow/schemas/config.schema.yaml", "config/README.md"])
def test_it_is_fresh(generated, name):
    made, kept = ((path / name).read_text(encoding="utf-8") for path in (generated, HOME))
    assert kept == made, "run `python workflow/scripts/generate_schema.py`"
