"""Jobs that Snakemake starts, with fake stages that record their arguments."""

import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stages.registry import STAGES
from tests.helpers.processes import is_alive
from tests.workflow.checkout import ENVIRONMENT, HOME, copy_project, wait_for_ranks

EVALUATION = "results/runs/base/eval/00000002/validation.json"


def said(path):
    """Return how the fake stage that wrote a file was called."""
    return json.loads(Path(path).read_text(encoding="utf-8"))


def options(path):
    argv = said(path)["argv"]
    return {name: value for name, value in itertools.pairwise(argv) if name.startswith("--")}


@pytest.fixture
def elsewhere(tmp_path):
    """A working directory with another `stages`, which must never be imported."""
    path = tmp_path / "else where"
    (path / "stages").mkdir(parents=True)
    (path / "stages/__init__.py").write_text("raise SystemExit('the wrong stages')")
    return path


def test_jobs_run_with_this_python_and_these_stages_from_anywhere(pretending, elsewhere, small):
    snakefile = pretending.path / "workflow/Snakefile"
    profile = pretending.path / "profiles/local"
    mine = pretending.write_config(small)
    pretending.snakemake("-s", snakefile, "--profile", profile, "--configfile", mine, "--directory", elsewhere, cwd="/")

    results = elsewhere / "results"
    for path in results.rglob("*.json"):
        assert said(path)["python"] == sys.executable
        assert Path(said(path)["file"]).parent == pretending.path / "stages"
        assert Path(said(path)["cwd"]) == elsewhere

    model = said(results / "runs/base/models/00000002.json")
    assert (model["ranks"], model["threads"]) == ("2", "1")
    told = options(results / "runs/base/models/00000002.json")
    recipe, operation = json.loads(told["--recipe"]), json.loads(told["--operation"])
    assert recipe["weights"] == {"code": 1} and {"steps", "milestones"} <= set(operation)
    assert {*recipe, *operation} == {*small["runs"]["base"]["pretrain"], "model"}
    assert told["--previous"] == "results/runs/base/models/00000001.json"
    assert told["--train-dir"] == "results/runs/base/train"
    assert told["--until"] == "00000002"
    assert "--previous" not in options(results / "runs/base/models/00000001.json")
    assert options(elsewhere / EVALUATION)["--export"] == "results/runs/base/export/00000002/manifest.json"
    assert all(len(options(path)["--code"]) == 64 for path in results.rglob("*.json"))
    expected = json.loads(options(results / "summary.json")["--expect"])
    assert expected["runs"]["base"]["milestones"] == ["00000001", "00000002"]
    assert expected["runs"]["base"]["pretrain"] == recipe
    assert expected["code"]["pretrain"] == told["--code"]
    assert not list(elsewhere.glob("stages/__pycache__"))

    told = options(results / "runs/base/export/00000002/card.json")
    assert (told["--name"], told["--evaluations"]) == ("base", EVALUATION)
    assert told["--export"] == "results/runs/base/export/00000002/manifest.json"
    first_score, last_model = (
        (results / "runs/base" / path).stat().st_mtime
        for path in ("eval/00000001/validation.json", "models/00000002.json")
    )
    assert first_score < last_model, "a milestone must not wait for the next one"


def test_finetuning_gets_its_model_and_data_and_both_models_are_scored(pretending, small):
    mine = pretending.write_config(small)
    pretending.snakemake("tuned", "--profile", pretending.path / "profiles/local", "--configfile", mine)
    results = pretending.path / "results"
    model = results / "runs/statements/models/00000002.json"
    told, tuned = options(model), small["runs"]["statements"]["finetune"]
    assert told["--initial"] == "results/runs/base/models/00000002.json"
    assert told["--previous"] == "results/runs/statements/models/00000001.json"
    assert told["--sources"] == "results/sources/statements/list.json"
    assert told["--corpus"] == "results/tokens/main/manifest.json"
    assert told["--tokenizer"] == "results/tokenizers/main/manifest.json"
    assert told["--train-dir"] == "results/runs/statements/train"
    assert {*json.loads(told["--recipe"]), *json.loads(told["--operation"]), "milestones"} == {*tuned}
    assert (said(model)["ranks"], said(model)["threads"]) == ("2", "1")
    assert "--initial" not in options(results / "runs/base/models/00000002.json")
    scored = sorted(path.relative_to(results / "runs") for path in results.rglob("eval/*/*.json"))
    expected = ["base/eval/00000002", "statements/eval/00000001", "statements/eval/00000002"]
    assert scored == [Path(place, "statements.json") for place in expected]
    for path in scored:
        told = options(results / "runs" / path)
        assert told["--prompt-completion"] == "results/sources/statements/list.json"
        assert told["--corpus"] == "results/tokens/main/manifest.json"
        suite = small["suites"]["statements"].items()
        assert json.loads(told["--recipe"]) == {key: value for key, value in suite if key != "prompt_completion"}


def test_recipe_larger_than_a_command_line_argument_goes_through_a_file(pretending, small):
    folder = pretending.path / ("d" * 80)
    folder.mkdir()
    paths = [f"{folder.name}/{number:04}.txt" for number in range(1800)]
    for path in paths:
        (pretending.path / path).touch()
    small["sources"]["code"] = {"kind": "text", "paths": paths}
    given = ["--configfile", pretending.write_config(small)]
    target = "results/sources/code/list.json"
    pretending.dry_run(target, *given)
    assert not (pretending.path / ".snakemake/caravan/recipes").exists()
    pretending.snakemake(target, "--cores", 1, *given)
    recipe = options(pretending.path / target)["--recipe"]
    assert json.loads((pretending.path / recipe).read_text())["paths"] == paths
    assert "Nothing to be done" in pretending.dry_run(target, *given).stdout


@pytest.mark.long
def test_summary_gets_a_recipe_larger_than_a_command_line_argument(tmp_path, small):
    checkout = copy_project(tmp_path)
    checkout.pretend(STAGES["summarize"])
    long = "/".join(15 * [200 * "x"])
    (checkout.path / long).mkdir(parents=True)
    suites = {f"suite{number}": {"tasks": ["next_line"], "include_path": long} for number in range(50)}
    small["suites"] |= suites
    small["runs"]["base"]["suites"] = [*suites]
    checkout.pretend_all_is_made(small)
    (checkout.path / "results/summary.json").unlink()
    checkout.snakemake("results/summary.json", "--cores", 1, "--configfile", checkout.write_config(small))
    expected = options(checkout.path / "results/summary.json")["--expect"]
    assert len(expected) > 128 * 1024, "the longest argument that Linux accepts"
    assert json.loads(expected)["runs"]["base"]["suites"] == suites


def write_llama(directory):
    """Write the least that has the digest of a Hugging Face model."""
    directory.mkdir(exist_ok=True)
    shape = {"num_hidden_layers": 1, "hidden_size": 8, "num_attention_heads": 1, "intermediate_size": 8}
    config = {"model_type": "llama", "max_position_embeddings": 256, "vocab_size": 9, "rms_norm_eps": 1e-5, **shape}
    (directory / "config.json").write_text(json.dumps(config))
    (directory / "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")


def test_a_run_starts_from_a_milestone_or_a_directory(pretending, small):
    write_llama(pretending.path / "a llama")
    fms = {"path": "a llama/step_7_ckp.pth", "config": "a llama/config.json"}
    (pretending.path / fms["path"]).write_bytes(b"weights")
    reset = {"optimizer": "reset", "schedule": "reset", "data": "reset"}
    base = small["runs"]["base"]
    more = base | {"pretrain": base["pretrain"] | {"steps": 1, "milestones": [1], "initial": reset}}
    small["runs"] = {
        "base": base,
        "more": more | {"initial": {"run": "base", "step": 1}},
        "theirs": more | {"initial": {"path": "a llama"}},
        "tuned": small["runs"]["statements"] | {"initial": fms, "corpus": "main"},
    }
    mine = pretending.write_config(small)
    wanted = [f"results/runs/{run}/models/00000001.json" for run in ("more", "theirs", "tuned")]
    pretending.snakemake(*wanted, "--cores", 2, "--configfile", mine)
    first, second, tuned = (options(pretending.path / path) for path in wanted)
    assert (tuned["--initial"], tuned["--initial-config"]) == (fms["path"], fms["config"])
    assert first["--initial"] == "results/runs/base/models/00000001.json"
    assert second["--initial"] == "a llama"
    assert json.loads(first["--recipe"])["initial"] == reset


def write_outer_snakefile(directory, checkout, config):
    (directory / "Snakefile").write_text(
        f"configfile: {str(checkout.write_config(config))!r}\n\n"
        f"module caravan:\n    snakefile: {str(checkout.path / 'workflow/Snakefile')!r}\n"
        '    config: config\n    prefix: "sub dir"\n\nuse rule * from caravan as caravan_*\n',
        encoding="utf-8",
    )


def test_a_workflow_that_imports_this_one_moves_all_its_files(pretending, elsewhere, small):
    write_outer_snakefile(elsewhere, pretending, small)
    pretending.snakemake("-s", elsewhere / "Snakefile", "--cores", 2, "caravan_models", cwd=elsewhere)
    told = options(elsewhere / "sub dir/results/runs/base/models/00000002.json")
    assert told["--train-dir"] == "sub dir/results/runs/base/train"
    assert told["--previous"] == "sub dir/results/runs/base/models/00000001.json"
    assert not (elsewhere / "results").exists()
    # a profile that names the rules as they were would not apply
    command = ["-s", elsewhere / "Snakefile", "-n", "--cores", 2, "caravan_tokens", "--set-threads"]
    done = pretending.snakemake(*command, "pretrain=2", "caravan_convert=2", "convert=2", cwd=elsewhere, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "config: the profile sets resources, threads or groups of pretrain, which do not apply: this workflow imports "
        "these rules as caravan_pretrain; give them these names in the profile, or import them without `as`"
    )
    pretending.snakemake(*command, "caravan_pretrain=2", cwd=elsewhere)


def test_a_custom_tokenizer_gets_its_file_relative_to_the_working_directory(pretending, elsewhere, small):
    (elsewhere / "mine.json").write_text("{}")
    small["tokenizers"]["main"] = {"path": "mine.json", "bos": "<s>", "eos": "</s>"}
    write_outer_snakefile(elsewhere, pretending, small)
    arguments = ["-s", elsewhere / "Snakefile", "--cores", 2, "caravan_tokenizers"]
    pretending.snakemake(*arguments, cwd=elsewhere)
    told = options(elsewhere / "sub dir/results/tokenizers/main/manifest.json")
    assert json.loads(told["--recipe"])["path"] == "mine.json"
    assert not list(elsewhere.rglob("list.json")), "no tokenizer is trained, so no source is listed"
    (elsewhere / "mine.json").unlink()
    done = pretending.snakemake(*arguments, "-F", cwd=elsewhere, check=False)
    assert done.returncode == 1
    assert "tokenizers.main.path must be a file; mine.json does not exist" in done.stdout + done.stderr


def test_every_job_has_a_log_and_a_software_environment():
    for path in (HOME / "workflow/rules").rglob("*.smk"):
        text = path.read_text(encoding="utf-8")
        jobs = text.count("    shell:")
        assert text.count("    log:") == text.count("--log {log:q}") == jobs
        assert text.count('    conda:\n        "../envs/caravan.yml"') == jobs


def test_ctrl_c_leaves_no_trainer_behind(pretending, small, tmp_path):
    code = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, 'rank' + os.environ['RANK']).write_text(str(os.getpid()))\n"
        "time.sleep(100)\n"
    )
    pretending.pretend(STAGES["pretrain"], code=code)
    given = ["models", "--profile", "profiles/local", "--configfile", pretending.write_config(small)]
    command = [sys.executable, "-m", "snakemake", *given]
    snakemake = subprocess.Popen(
        command,
        cwd=pretending.path,
        env=ENVIRONMENT,
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    ranks = wait_for_ranks(tmp_path)
    os.killpg(snakemake.pid, signal.SIGINT)
    assert snakemake.wait(60) == 1
    assert not any(map(is_alive, ranks))
