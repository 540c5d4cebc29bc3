"""The site's environment file of a job, by the scheduler whose job it is; the command that the report shows."""

import shutil
import subprocess

import pytest

from scripts.commands import shell_prefix, shown_command
from tests.workflow.checkout import HOME

PROFILES = {"LSB_JOBID": "lsf", "PBS_JOBID": "pbs", "SLURM_JOB_ID": "slurm", "FLUX_JOB_ID": "flux"}


@pytest.fixture
def read(tmp_path):
    """Return the name of the environment file that a job reads, with some variables in its environment."""
    (tmp_path / "workflow").mkdir()
    shutil.copy(HOME / "workflow/site.sh", tmp_path / "workflow")
    for name in PROFILES.values():
        if name != "flux":  # a scheduler without a profile
            (tmp_path / f"profiles/{name}").mkdir(parents=True)
            (tmp_path / f"profiles/{name}/environment.sh").write_text(f"found={name}\n")
    (tmp_path / "site.sh").write_text("found=site\n")

    def run(**variables):
        prefix = shell_prefix(tmp_path).replace("{{", "{").replace("}}", "}")
        script = f'set -euo pipefail; found=none; {prefix} echo "$found"'
        environment = {"PATH": "/usr/bin:/bin", **variables}
        done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=False)
        assert done.stderr == "", done.stderr
        return done.stdout.strip()

    return run


def test_a_job_reads_the_file_of_its_schedulers_profile(read):
    assert [read(**{name: "7"}) for name in PROFILES] == ["lsf", "pbs", "slurm", "none"]


def test_outside_of_jobs_no_file_is_read(read, tmp_path):
    assert read() == read(CARAVAN_SITE=str(tmp_path / "site.sh")) == "none"


def test_the_file_of_the_site_comes_first_also_without_a_profile(read, tmp_path):
    site = str(tmp_path / "site.sh")
    assert read(SLURM_JOB_ID="7", CARAVAN_SITE=site) == read(FLUX_JOB_ID="7", CARAVAN_SITE=site) == "site"


def test_secrets_are_not_shown():
    command = "all --storage-s3-secret-key mine --config token=mine a=1 --api-key=mine --storage-s3-access-key mine -n"
    shown = shown_command([*command.split(), "--x", "s3://me:mine@host/a"])
    assert "mine" not in shown
    assert shown.startswith("snakemake all --storage-s3-secret-key '***' --config 'token=***' a=1 '--api-key=***' ")
    assert shown.endswith(" -n --x '***'")
