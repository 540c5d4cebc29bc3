"""evaluate --baseline: models of any origin, scored as exports are."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from stages import evaluate
from stages.lib import manifest
from tests.helpers import evaluations
from tests.helpers.evaluations import LOCAL, RECIPE, scored
from tests.helpers.export_fixtures import argv_of


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An export and its scores, for tests that only read."""
    options = evaluations.export(tmp_path_factory.mktemp("made"))
    scored(options)
    return options


@pytest.fixture
def baseline(made, tmp_path):
    """A copy of the export's model alone."""
    shutil.copytree(made["--export"].parent, tmp_path / "model", ignore=shutil.ignore_patterns("*manifest.json"))
    return tmp_path / "model"


def options_of(made, baseline, output):
    return {"--baseline": baseline, "--corpus": made["--corpus"], "--output": output, "--code": "e1"}


def test_a_baseline_has_the_scores_of_an_export_of_the_same_bytes(made, baseline, tmp_path):
    options = options_of(made, baseline, tmp_path / "out" / "validation.json")
    found = scored(options)
    expected = manifest.read(made["--output"]).identity
    assert found == expected["results"]
    identity = manifest.read(options["--output"]).identity
    assert identity["trivial"] == expected["trivial"]
    assert "export" not in identity
    before = options["--output"].read_bytes()
    options["--output"].unlink()
    scored(options)
    assert options["--output"].read_bytes() == before  # cached by content
    config = json.loads((baseline / "config.json").read_text())
    (baseline / "config.json").write_text(json.dumps(config | {"rms_norm_eps": 0.1}))
    assert scored(options) != found


def test_a_model_of_another_architecture_is_scored(made, tmp_path):
    """GPT-2 has learned positions, and no mask of our own reaches its rows: each continuation has a row."""
    from transformers import AutoTokenizer, GPT2Config, GPT2LMHeadModel

    tokenizer = AutoTokenizer.from_pretrained(made["--export"].parent)
    config = GPT2Config(vocab_size=len(tokenizer), n_positions=64, n_embd=16, n_layer=1, n_head=2, bos_token_id=1)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt")
    tokenizer.save_pretrained(tmp_path / "gpt")
    found = scored(options_of(made, tmp_path / "gpt", tmp_path / "out.json"))
    assert set(found) == set(LOCAL)


def refused(options, capsys, *words):
    assert evaluate.main(argv_of(options, **{"--recipe": json.dumps(RECIPE)})) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert all(word in line for word in words), line
    assert not options["--output"].exists()


def test_a_tokenizer_without_bos_is_refused(made, baseline, tmp_path, capsys):
    path = baseline / "tokenizer_config.json"
    config = json.loads(path.read_text())
    del config["bos_token"]
    path.write_text(json.dumps(config))
    refused(options_of(made, baseline, tmp_path / "out.json"), capsys, str(baseline), "must have a BOS token")


@pytest.mark.parametrize("missing", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_directory_that_is_no_model_is_refused(made, baseline, tmp_path, capsys, missing):
    (baseline / missing).unlink()
    if missing == "tokenizer.json":
        (baseline / "tokenizer.model").unlink()
    refused(options_of(made, baseline, tmp_path / "out.json"), capsys, f"baseline {baseline}")


def test_a_model_of_a_billion_layers_is_refused_before_it_is_made(made, baseline, tmp_path, capsys):
    config = json.loads((baseline / "config.json").read_text()) | {"num_hidden_layers": 10**9}
    (baseline / "config.json").write_text(json.dumps(config))
    said = "config.json: num_hidden_layers must be at most 10,000, got 1,000,000,000"
    refused(options_of(made, baseline, tmp_path / "out.json"), capsys, said)


@pytest.mark.long
def test_a_repository_that_cannot_be_reached_is_one_sentence(made, tmp_path):
    argv = argv_of(options_of(made, "org/model", tmp_path / "out.json"), **{"--recipe": json.dumps(RECIPE)})
    closed = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "hub")}
    command = [sys.executable, "-m", "stages.evaluate", *argv]
    done = subprocess.run(command, env=os.environ | closed, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(
        "evaluate: baseline org/model must be a directory, or a repository on the Hub or in its cache"
    )
