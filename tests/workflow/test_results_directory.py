"""`results` in a config: where everything is written, so that two configs do not overwrite each other."""

import json

import pytest

from scripts.results_directory import check_below_storage, directory_of
from stages.lib import manifest
from stages.lib.errors import UserError
from tests.workflow.checkout import HOME

MODEL = "runs/base/models/00000100.json"


def paths_of(plan):
    return {path for path in plan if "/" in path}


def test_all_paths_are_below_it_and_targets_of_an_absolute_one_are_named_in_both_ways(pretending, config, tmp_path):
    default = pretending.plan("all", config=config)
    for directory in ("../beside", str(tmp_path / "far")):
        plan = pretending.plan("all", config=config | {"results": directory})
        assert paths_of(plan) == {path.replace("results", directory, 1) for path in paths_of(default)}
    target = f"{tmp_path}/far/{MODEL}"
    assert target in pretending.plan(target, config=config | {"results": str(tmp_path / "far")})


def test_jobs_write_logs_figures_and_runs_below_it(pretending, config):
    given = ["--configfile", pretending.write_config(config | {"results": "mine"})]
    pretending.snakemake("all", "--cores", 2, *given)
    assert not (pretending.path / "results").exists()
    made = {path.name for path in (pretending.path / "mine").iterdir()}
    files = {"card.html", "scores.csv", "summary.json", "summary.txt"}
    assert made == files | {"figures", "logs", "pages", "runs", "sources", "tokenizers", "tokens"}
    assert pretending.plan("all", config=config | {"results": "mine/"}) == {}
    (pretending.path / "mine").rename(pretending.path / "moved")
    assert pretending.plan("all", config=config | {"results": "moved"}) == {}
    assert len(pretending.plan("all", config=config)) > 10  # another directory is another plan


def test_prefix_of_a_module_comes_before_it(pretending):
    (pretending.path / "outer.smk").write_text(
        'module caravan:\n    snakefile: "workflow/Snakefile"\n    config: config\n    prefix: "pre"\n'
        "use rule * from caravan as caravan_*\n"
    )
    config = pretending.write_config(pretending.default_config | {"results": "mine"})
    target = f"pre/mine/{MODEL}"
    plan = pretending.jobs(pretending.dry_run(target, "-s", "outer.smk", "--configfile", config).stdout)
    assert target in plan and all(path.startswith("pre/mine/") for path in paths_of(plan))


def test_path_that_cannot_hold_results_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, sentence in (
        ("", "results must be a path of printable characters"),
        ("~/x", "without ~ at its beginning, got '~/x'"),
        ("a{b}", "without { } < >"),
        ("a\nb", "printable"),
        (".", "results must be a directory of its own, and . holds the working directory or the code"),
        ("/", "results must be a directory of its own"),
        (str(HOME / "stages/x"), "results must be a directory outside Caravan's code"),
        (str(HOME), "holds the working directory or the code"),
        (".snakemake/x", "results must be a directory outside Snakemake's own"),
        (str(HOME / "README.md"), "is a file"),
    ):
        with pytest.raises(UserError) as refused:
            directory_of({"results": given}, HOME)
        assert sentence in str(refused.value) and "\n" not in str(refused.value)


def test_path_outside_of_the_storage_is_refused():
    for given in ("/abs", "../x"):
        with pytest.raises(UserError, match="results must be a path below the default storage prefix, got"):
            check_below_storage(given)


def warnings_of(done):
    return [line for line in (done.stdout + done.stderr).splitlines() if "to keep them" in line]


def write_summary(checkout, *runs):
    inputs = {f"runs/{run}/models/00000100.json": "0" * 64 for run in runs}
    made = manifest.content("summarize", {"inputs": inputs}, {})
    (checkout.path / "results").mkdir(exist_ok=True)
    (checkout.path / "results/summary.json").write_text(json.dumps(made))


def test_results_of_another_config_are_named_in_one_sentence(pretending, config):
    config_file = pretending.write_config(config)
    write_summary(pretending, "base", "mine", "yours")
    (line,) = warnings_of(pretending.dry_run("all", "--configfile", config_file))
    assert line == (
        "caravan: results has scores of mine, yours, which the config does not have: "
        "to keep them, set `results` in the config to another directory"
    )
    locks = pretending.path / ".snakemake/locks"
    locks.mkdir(parents=True, exist_ok=True)
    (locks / "0.output.lock").write_text("results/scores.csv\n")
    done = pretending.snakemake("--profile", "profiles/local", "--unlock")  # it plans nothing, and needs no config
    assert "caravan:" not in done.stdout + done.stderr
    assert "Unlocked" in done.stderr and not locks.exists()
    write_summary(pretending, "base", "statements")
    assert warnings_of(pretending.dry_run("all", "--configfile", config_file)) == []


def test_models_of_another_recipe_are_named_in_one_sentence(pretending, config):
    path = pretending.path / "results" / MODEL
    path.parent.mkdir(parents=True)
    manifest.write(path, "pretrain", {"recipe": {"seq_len": 7}, "step": 100, "outputs": {}}, {})
    (line,) = warnings_of(pretending.dry_run("all", "--configfile", pretending.write_config(config)))
    assert line.startswith("caravan: results has models of base by another recipe: to keep them, set `results`")
