"""Profiles hold resources and executors; rules and configs hold neither."""

import os
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.workflow.checkout import HOME, write_commands

PROFILES = [path.parent.name for path in sorted((HOME / "profiles").glob("*/profile.yaml"))]
ALWAYS = {"keep-going": True, "rerun-incomplete": True, "show-failed-logs": True}


def profile(name):
    return yaml.safe_load((HOME / "profiles" / name / "profile.yaml").read_text(encoding="utf-8"))


def test_profiles_continue_after_a_failure_and_no_dry_run_overwrites_a_report():
    assert PROFILES == ["kubernetes", "local", "pbs", "slurm"], "no default profile overrides others"
    for settings in map(profile, PROFILES):
        assert settings | ALWAYS == settings
        assert not [key for key in settings if key.startswith("report")]


def test_the_file_of_a_profile_has_either_name_but_not_both(finished):
    new = finished.path / "profiles/local/profile.yaml"
    old = new.with_name("config.yaml")
    old.write_text(new.read_text())
    assert finished.refusal("all", "--profile", "profiles/local") == (
        "config: the profile profiles/local must have one file, and has profile.yaml and config.yaml: move your values "
        "to profile.yaml and delete config.yaml"
    )
    new.unlink()
    assert "Nothing to be done" in finished.dry_run("all", "--profile", "profiles/local").stdout


def test_retries_are_set_only_in_profiles():
    rules = [HOME / "workflow/Snakefile", *(HOME / "workflow/rules").rglob("*.smk")]
    assert len(rules) > 6
    assert not [path for path in rules if "retries" in path.read_text()]


def test_profiles_set_only_rules_and_sections_that_exist():
    rules = {path.stem: path.read_text() for path in (HOME / "workflow/rules").glob("*.smk")}
    for name in PROFILES:
        settings = profile(name)
        named = {*settings["set-resources"]} if isinstance(settings["set-resources"], dict) else set()
        named |= {entry.split("=")[0].split(":")[0] for entry in settings["set-threads"]}
        assert all(any(f"rule {rule}:" in text for text in rules.values()) for rule in named)
        assert not named & {"config", "configfile", "configfiles"}


@pytest.fixture
def sbatch(tmp_path):
    """A directory with fake Slurm commands; every submission is logged and fails."""
    folder = tmp_path / "bin"
    submit = f'[[ $* != *--test-only* ]] || exit 0\nprintf "%s\\n" "$*" >> {folder}/log\nexit 1'
    write_commands(folder, {"sbatch": submit, "sinfo": "echo all", "squeue": ":", "sacct": ":"})
    return folder


def submitted(checkout, sbatch, target, rule="pretrain"):
    """Return the arguments of sbatch for a target's job."""
    environment = {"PATH": f"{sbatch}:{Path(sys.executable).parent}:{os.environ['PATH']}"}
    quick = ["--retries", 0, "--slurm-init-seconds-before-status-checks", 1]
    checkout.snakemake(target, "--profile", "profiles/slurm", *quick, "-R", rule, environment=environment, check=False)
    (line,) = (sbatch / "log").read_text(encoding="utf-8").splitlines()
    return line.split(" --wrap=")[0]


@pytest.mark.parametrize(("rule", "nodes"), [("pretrain", 1), ("pretrain", 3), ("evaluate", 1)])
def test_training_is_submitted_with_one_launcher_per_node_and_scoring_as_one_task(finished, sbatch, rule, nodes):
    settings = finished.path / "profiles/slurm/profile.yaml"
    settings.write_text(settings.read_text().replace("nodes: 1", f"nodes: {nodes}"))
    step = f"{finished.default_config['runs']['base']['pretrain']['milestones'][0]:08d}"
    trains = rule == "pretrain"
    target = f"models/{step}.json" if trains else f"eval/{step}/validation.json"
    line = submitted(finished, sbatch, f"results/runs/base/{target}", rule)
    assert f"--job-name {rule}_base_{step}{'' if trains else '_validation'} " in line
    assert "--gres=gpu:1" in line and ("--nice=100" in line) != trains
    for option in (f"--nodes={nodes}", "--cpus-per-task=8", "--ntasks-per-node=1"):
        assert option in line or not trains
    assert not trains or not ("--ntasks=" in line or "--ntasks-per-gpu" in line or "--gpus" in line)


@pytest.mark.parametrize("name", PROFILES)
def test_finetuning_starts_like_pretraining(name):
    settings = profile(name)
    threads = dict(entry.split("=") for entry in settings["set-threads"])
    assert threads["finetune"] == threads["pretrain"]
    resources = settings["set-resources"]
    if isinstance(resources, list):
        resources = {rule: {entry for entry in resources if entry.startswith(f"{rule}:")} for rule in threads}
        assert resources["finetune"] == {entry.replace("pretrain:", "finetune:") for entry in resources["pretrain"]}
    else:
        assert {**resources["finetune"], "runtime": 0} == {**resources["pretrain"], "runtime": 0}


def test_pods_and_snakemake_see_the_same_volume():
    settings = profile("kubernetes")
    claim, path = settings["kubernetes-persistent-volumes"].split(":")
    assert settings["local-storage-prefix"] == settings["remote-job-local-storage-prefix"] == path
    text = (HOME / "profiles/kubernetes/cluster.yaml").read_text(encoding="utf-8")
    made = {(part["kind"], part["metadata"]["name"]): part for part in yaml.safe_load_all(text)}
    assert made["PersistentVolumeClaim", claim]["spec"]["accessModes"] == ["ReadWriteMany"]
    spec = made["Pod", "caravan"]["spec"]
    assert spec["containers"][0]["volumeMounts"] == [{"name": claim, "mountPath": path}]
    assert spec["containers"][0]["image"] == settings["container-image"]


def test_the_image_has_the_versions_of_the_extra():
    extra = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    image = (HOME / "profiles/kubernetes/Dockerfile").read_text()
    assert all(package in image for package in extra["cloud"] + extra["s3"])
