"""The schema and the config's README agree with the stages' recipes."""

import subprocess
import sys

import jsonschema
import pytest
import yaml

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


def test_examples_are_values_that_the_keys_take():
    def without_required(value):
        if isinstance(value, list):
            return [without_required(item) for item in value]
        if not isinstance(value, dict):
            return value
        left_out = ("required", "dependentRequired", "if", "then")
        return {key: without_required(item) for key, item in value.items() if key not in left_out}

    schema, examples = (
        yaml.safe_load((HOME / f"workflow/schemas/{name}.yaml").read_text(encoding="utf-8"))
        for name in ("config.schema", "examples")
    )
    del schema["properties"]["runs"]["additionalProperties"]["anyOf"][1]  # a run that is `from` another: any keys
    jsonschema.validate(examples, without_required(schema))
