"""Results on Slurm, whose commands are replaced by scripts."""

import pytest

from tests.workflow.checkout import write_commands
from tools.doctor import __main__ as doctor
from tools.doctor import slurm
from tools.doctor.slurm import SLURM

CONFIG = "AccountingStorageType   = accounting_storage/{storage}\nJobRequeue              = {requeue}"
COMMANDS = {
    "sbatch": "echo slurm-wlm 23.11.4",
    "scontrol": "echo '{config}'",
    "sacct": "exit {sacct}",
    "sacctmgr": "echo lab; echo lab; echo shared",
    "sinfo": "printf '%s' '{sinfo}'",
}
SINFO = "cpu*|up|1-00:00:00|1:00:00|(null)|20\ngpu|up|2-00:00:00|n/a|gpu:h100:8(S:0-1)|4\n"


@pytest.fixture
def ask(tmp_path, monkeypatch, capsys):
    """A function that runs the check on a cluster: (exit code, {name: line without the name})."""

    def run(*options, storage="slurmdbd", requeue=1, sacct=0, sinfo=SINFO, **replaced):
        values = {"config": CONFIG.format(storage=storage, requeue=requeue), "sacct": sacct, "sinfo": sinfo}
        write_commands(tmp_path, {name: text.format(**values) for name, text in (COMMANDS | replaced).items()})
        monkeypatch.setenv("PATH", f"{tmp_path}:/bin")
        return check(capsys, monkeypatch, *options)

    return run


def check(capsys, monkeypatch, *options):
    for name in ("SLURM_JOB_ID", "RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(doctor, "CHECKS", (SLURM,))
    code = doctor.main([*options])
    lines = [line.split(maxsplit=2) for line in capsys.readouterr().out.splitlines()]
    return code, {name: f"{level} {text}" for level, name, text in lines if level != "fit"}


def test_a_cluster_with_accounting(ask):
    code, lines = ask("--partition", "gpu", "--account", "lab")
    assert code == 0
    assert lines == {
        "slurm": "ok Slurm 23.11.4, with accounting: `slurm-status-command` may be sacct or squeue",
        "partitions": "ok gpu has 4 nodes of gpu:h100:8; gpu limit 2-00:00:00, n/a by default",
        "requeue": "ok allowed: a training that reaches its time limit resumes automatically",
        "account": "ok lab is one of your accounts",
    }


def test_a_cluster_without_accounting_needs_squeue(ask):
    code, lines = ask("--account", "lab", storage="none", requeue=0)
    assert code == 0
    assert lines["slurm"] == "ok Slurm 23.11.4, no accounting: set `slurm-status-command: squeue`"
    assert lines["account"] == "ok lab is not checked: Slurm has no accounting"
    limits = "cpu limit 1-00:00:00, 1:00:00 by default, gpu limit 2-00:00:00, n/a by default"
    assert lines["partitions"].endswith(limits)
    requeue = "ok only for jobs submitted with --requeue (JobRequeue = 0): keep it in profiles/slurm"
    assert lines["requeue"] == requeue
    assert ask(sacct=1)[1]["slurm"].startswith("warning Slurm 23.11.4, accounting does not answer: set `slurm-status")


def test_missing_partition_and_account_fail_and_the_existing_ones_are_named(ask):
    code, lines = ask("--partition", "big", "--account", "mine")
    assert code == 2
    assert lines["partitions"] == "FAIL --partition must be one of cpu, gpu, got big"
    assert lines["account"] == "FAIL --account must be one of lab, shared, got mine"


def test_unusable_partitions(ask):
    for sinfo, line in (
        ("", "FAIL sinfo lists no partition: jobs cannot be submitted"),
        ("gpu*|down|1:00|1:00|gpu:8|4\n", "FAIL down: gpu; jobs would not start"),
        ("gpu|up|1:00|1:00|gpu:8|4\n", "warning no default partition: set slurm_partition to one of gpu"),
        ("cpu*|up|1:00|1:00|(null)|4\n", "warning no GPUs in cpu: `gres` must be empty"),
    ):
        assert ask(sinfo=sinfo)[1]["partitions"] == line


def test_a_controller_that_does_not_answer_fails_if_slurm_is_required(ask):
    broken = "echo 'Unable to contact slurm controller (connect failure)' >&2; exit 1"
    said = "`scontrol show config` failed: Unable to contact slurm controller (connect failure): check that slurmctld"
    for options, code, level in ((["--slurm"], 2, "FAIL"), ([], 0, "warning")):
        found, lines = ask(*options, scontrol=broken)
        assert found == code
        assert lines["slurm"].startswith(f"{level} {said}")


def test_a_command_that_hangs_times_out(ask, monkeypatch):
    monkeypatch.setattr(slurm, "COMMAND_SECONDS", 0.2)
    assert ask("--slurm", sinfo="", sbatch="exec sleep 20")[1]["slurm"].startswith(
        "FAIL `sbatch --version` timed out after 0 s"
    )


def test_a_machine_without_slurm_is_fit_unless_slurm_is_required(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert check(capsys, monkeypatch) == (0, {"slurm": "ok sbatch is not on PATH: Slurm is not used"})
    for options in (["--slurm"], ["--partition", "gpu"]):
        code, lines = check(capsys, monkeypatch, *options)
        assert code == 2
        assert lines["slurm"].startswith(f"FAIL {options[0]} needs Slurm, but sbatch is not on PATH: ")
