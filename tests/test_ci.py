"""CI calls existing targets of the Makefile on the Python versions of pyproject.toml."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

HOME = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((HOME / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
JOBS = WORKFLOW["jobs"]
TARGETS = set(re.findall(r"^([a-z-]+):", (HOME / "Makefile").read_text(encoding="utf-8"), re.M))
PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def targets(job):
    """Targets of the Makefile that a job makes, also by way of .ci/run."""
    commands = "\n".join(step.get("run", "") for step in JOBS[job]["steps"])
    return set(re.findall(r"(?:\bmake|\.ci/run) ([a-z-]+)", commands))


def uploads(job):
    return [step for step in JOBS[job]["steps"] if step.get("uses", "").startswith("actions/upload-artifact@")]


def test_jobs_make_existing_targets():
    made = {job: targets(job) for job in JOBS}
    assert made == {
        "test": {"test"},
        "other-pythons": {"test-fast", "demo"},
        "landing": {"test-landing"},
        "cloud": {"test-cloud"},
        "standards": {"test-standards"},
        "nightly": {"test-long"},
    }
    assert set.union(*made.values()) <= TARGETS


def test_ci_run_makes_existing_targets_and_every_target_has_a_line_in_help():
    script = (HOME / ".ci/run").read_text(encoding="utf-8")
    assert {*re.findall(r"^\s*make ([a-z-]+)$", script, re.M)} == {"test", "test-landing"} <= TARGETS
    text = (HOME / "Makefile").read_text(encoding="utf-8")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", text, re.M)
    assert set(phony.split()) == TARGETS == set(re.findall(r"^([a-z-]+):.* ## ", text, re.M))


def test_python_versions_agree_with_the_metadata():
    (setup,) = [step["with"] for step in JOBS["test"]["steps"] if "setup-python" in step.get("uses", "")]
    tested = [setup["python-version"], *JOBS["other-pythons"]["strategy"]["matrix"]["python"]]
    assert all(isinstance(version, str) for version in tested), "3.10 without quotes is 3.1"
    assert PROJECT["requires-python"] == f">={tested[0]}"
    classified = [name.split(" :: ")[-1] for name in PROJECT["classifiers"] if "Python :: 3." in name]
    assert classified and set(classified) <= set(tested)


def test_logs_are_uploaded_also_after_a_failure_and_the_demo_uploads_its_report():
    when = {"test": "failure()", "other-pythons": "always()", "landing": "failure()", "cloud": "failure()"}
    when |= {"standards": "failure()", "nightly": "always()"}
    for job, condition in when.items():
        (upload,) = uploads(job)
        assert upload["if"] == condition and ".log" in upload["with"]["path"]
    assert {"results/card.html", "results/report.html"} <= set(uploads("other-pythons")[0]["with"]["path"].splitlines())


def test_fast_tests_start_in_several_workers_and_skip_processes():
    words = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", "-n", "1", "--no-processes"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [*words, "tests/test_ci.py", "-k", "citation or several_workers"]
    done = subprocess.run(command, check=False, cwd=HOME, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed, 1 skipped" in done.stdout and "starts a process" in done.stdout


def test_long_tests_run_every_night_and_nothing_else_does():
    assert WORKFLOW[True]["schedule"], "YAML reads the key `on` as true"
    assert [job for job in JOBS if "schedule' |" in JOBS[job].get("if", "")] == ["nightly"]
    assert all("!= 'schedule'" in JOBS[job]["if"] for job in set(JOBS) - {"nightly"})


def test_the_citation_names_the_version():
    citation = yaml.safe_load((HOME / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


@pytest.mark.standards
def test_cff_is_valid():
    cffconvert = pytest.importorskip("cffconvert", reason="make test-standards installs it")
    cffconvert.Citation((HOME / "CITATION.cff").read_text(encoding="utf-8")).validate()


def test_a_tag_is_checked_and_its_notes_are_the_section_of_its_version(tmp_path):
    release = yaml.safe_load((HOME / ".github/workflows/release.yml").read_text(encoding="utf-8"))
    commands = "\n".join(step.get("run", "") for job in release["jobs"].values() for step in job["steps"])
    assert {"test", "demo"} < {*re.findall(r"make ([a-z-]+)", commands)} <= TARGETS
    assert release["jobs"]["publish"]["needs"] == "check"

    def notes(tag):
        command = [sys.executable, tmp_path / ".ci/release_notes.py", tag]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    for name in (".ci/release_notes.py", "pyproject.toml", "CHANGELOG.md", "CITATION.cff"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((HOME / name).read_bytes())
    version = PROJECT["version"]
    code, text, _ = notes(f"v{version}")
    assert code == 0 and text.startswith("### ") and text in (HOME / "CHANGELOG.md").read_text(encoding="utf-8") + "\n"
    assert notes("v9.0") == (
        2,
        "",
        f"release_notes: the tag must be v{version}, the version of pyproject.toml, got v9.0\n",
    )
    for name, words in (("CITATION.cff", "date-released: "), ("CHANGELOG.md", "## [")):
        path = tmp_path / name
        path.write_text(path.read_text().replace(words, f"{words}x"))
        code, text, error = notes(f"v{version}")
        assert (
            (code, text) == (2, "") and error.startswith(f"release_notes: {name} must have") and error.count("\n") == 1
        )


def test_the_workflow_catalog_finds_what_standardized_usage_needs():
    usage = yaml.safe_load((HOME / ".snakemake-workflow-catalog.yml").read_text(encoding="utf-8"))["usage"]
    assert set(usage) == {"mandatory-flags", "software-stack-deployment", "report"}
    profile = usage["mandatory-flags"]["flags"].removeprefix("--profile ")
    for name in ("workflow/Snakefile", "config/README.md", "config/config.yaml", f"{profile}/profile.yaml"):
        assert (HOME / name).is_file(), name
    words = (HOME / "README.md").read_text(encoding="utf-8").lower()
    assert "snakemake" in words and "workflow" in words


def test_pre_commit_needs_no_other_repository():
    hooks = yaml.safe_load((HOME / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"]
