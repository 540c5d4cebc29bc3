"""Jobs that a cluster can never run are reported, and no others; tests/slurm checks this on a real cluster."""

import pytest

from scripts.slurm.check import fewer_nodes, find_mistake, submit_limit, too_many_jobs, unknown_account
from scripts.slurm.jobs import look_up, parse_gpus, parse_sinfo
from tests.workflow.checkout import write_commands

CLUSTER = """\
cpu|100|64|256000|2-00:00:00|(null)
gpu|8|128|1000000|12:00:00|gpu:h100:8(S:0-1),lustre:1
gpu|2|96|2000000|12:00:00|gpu:a100:4
all|110|64|256000|infinite|(null)
hidden|0|0|0|infinite|(null)
"""


def message(**resources):
    return find_mistake("pretrain", resources, parse_sinfo(CLUSTER))


CPU, GPU = {"slurm_partition": "cpu"}, {"slurm_partition": "gpu"}
LACKING = [
    ({"slurm_partition": "nope"}, "slurm_partition", "must be one of all, cpu, gpu, hidden, got nope"),
    ({"slurm_partition": "cpu,nope"}, "slurm_partition", "got nope"),
    ({"gres": "gpu:16"}, "gres", "requests 16 GPUs per node, but this cluster has at most 8"),
    ({"gres": "gpu:1"} | CPU, "gres", "requests 1 GPUs per node, but partition cpu has at most 0"),
    ({"gres": "gpu:A100:8"}, "gres", "requests 8 a100 GPUs per node, but this cluster has at most 4"),
    ({"mem_mb": 3_000_000}, "mem_mb", "requests 3000000 MB per node, but this cluster has at most 2000000"),
    ({"threads": 65} | CPU, "threads", "requests 65 cores per node, but partition cpu has at most 64"),
    ({"runtime": 721} | GPU, "runtime", "requests 721 minutes, but partition gpu has at most 720"),
    ({"runtime": 2881, "slurm_partition": "gpu,cpu"}, "runtime", "partition gpu,cpu has at most 2880"),
    ({"nodes": 11} | GPU, "nodes", "requests 11 nodes, but partition gpu has at most 10 that fit"),
    ({"nodes": 9, "gres": "gpu:8"} | GPU, "nodes", "requests 9 nodes, but partition gpu has at most 8 that fit"),
    ({"gres": "gpu:h100:1", "threads": 64, "mem_mb": 2_000_000}, "mem_mb", "1000000 on nodes with its other resources"),
]


@pytest.mark.parametrize(("resources", "name", "words"), LACKING)
def test_missing_resources_are_one_sentence(resources, name, words):
    sentence = message(**resources)
    assert sentence.startswith(f"the profile's `{name}` of pretrain ") and sentence.endswith(words)


def test_jobs_that_may_run_are_accepted():
    for resources in (
        {},
        GPU | {"gres": "gpu:8", "nodes": 8, "runtime": 720, "mem_mb": 1_000_000, "threads": 128},
        {"gres": "gpu:a100:4,lustre:1", "nodes": 2},
        {"slurm_partition": "cpu,gpu", "runtime": 2880},
        {"slurm_partition": "hidden", "nodes": 3},
        GPU | {"runtime": 9999, "nodes": 99, "qos": "long"},
        {"slurm_partition": "elsewhere", "cluster": "other"},
        {"mem_mb": 9_999_999, "mem_mb_per_cpu": 100},
        {"mem_mb": "<TBD>"},
    ):
        assert message(**resources) is None
    # GPUs without a type count for every type, and an unknown cluster accepts every job
    assert find_mistake("pretrain", {"gres": "gpu:h100:4"}, parse_sinfo("all|1|32|256000|infinite|gpu:4")) is None
    assert find_mistake("pretrain", GPU | {"nodes": 99, "gres": "gpu:9"}, []) is None


@pytest.mark.parametrize("text", ["slurm_load_partitions: Unable to contact", "all|4|32+|256000|infinite|gpu:4"])
def test_other_output_of_sinfo_is_an_error(text):
    with pytest.raises(ValueError, match="invalid literal"):
        parse_sinfo(text)


def test_gpus_are_parsed_from_gres():
    for gres, gpus in (
        ("(null)", {}),
        ("gpu", {"": 1}),
        ("gpu:4", {"": 4}),
        ("gres/gpu:2", {"": 2}),
        ("gpu:h100", {"h100": 1}),
        ("gpu:h100:8(S:0,1),gpu:1g.10gb:7(S:0),lustre:1", {"h100": 8, "1g.10gb": 7}),
        ("mps:400,gpu:2", {"": 2}),
    ):
        assert parse_gpus(gres) == gpus


def test_account_must_be_one_of_the_users():
    assert unknown_account("Lab", ["lab", "root"]) is None
    assert unknown_account("nope", []) is None
    assert unknown_account("nope", ["root", "lab"]) == (
        "the profile's `slurm_account` must be one of yours, lab, root, got nope"
    )


def test_several_nodes_without_gpus_need_a_task_each():
    assert fewer_nodes("pretrain", {"nodes": 2}) == (
        "the profile's `tasks` of pretrain must be its `nodes`, 2, since it has no GPUs in `gres`, got 1"
    )
    for resources in ({"nodes": 1}, {"nodes": 2, "tasks": 2}, {"nodes": 2, "gres": "gpu:1"}, {"nodes": "<TBD>"}, {}):
        assert fewer_nodes("pretrain", resources) is None


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A function that writes a command of Slurm."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return lambda name, script: write_commands(tmp_path, {name: script})


@pytest.mark.parametrize(
    ("associations", "qos", "limit"),
    [
        ("lab|20|normal\n", "normal|\n", 20),
        ("lab||normal\n", "normal|8\n", 8),
        ("lab|20|normal\n", "normal|8\n", 8),
        ("lab|20|normal\nother||normal\n", "normal|\n", None),
        ("lab|20|normal\nother|30|normal\n", "normal|\n", 30),
        ("", "", None),
    ],
)
def test_submit_limit_is_the_lower_one_of_account_and_qos(fake, tmp_path, associations, qos, limit):
    (tmp_path / "associations").write_text(associations)
    (tmp_path / "qos").write_text(qos)
    fake("sacctmgr", f"cat {tmp_path}/$4")
    assert submit_limit(None, None) == limit
    if limit:
        assert too_many_jobs(limit, 100, [{}]) is None
        assert too_many_jobs(200, 100, [{}]) == (
            f"the profile's `jobs` must be at most {limit}, as many as you may submit (MaxSubmitJobs), got 100"
        )


FAULTS = [
    ("FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "module: cuda/12.8 not found", True),
    ("NODE_FAIL ExitCode=0:1 NodeList=n1 NumNodes=1", "", True),
    ("NODE_FAIL ExitCode=0:1 NodeList=n[1-2] NumNodes=2", "", False),
    ("NODE_FAIL ExitCode=0:0 NodeList=(null) NumNodes=1", "", False),
    ("CANCELLED ExitCode=0:0 NodeList=(null) NumNodes=1", "", False),
    ("CANCELLED ExitCode=0:15 NodeList=n1 NumNodes=1", "", False),
    ("TIMEOUT ExitCode=0:15 NodeList=n1 NumNodes=1", "", False),
    ("PREEMPTED ExitCode=0:0 NodeList=n1 NumNodes=1", "", False),
    ("OUT_OF_MEMORY ExitCode=0:125 NodeList=n1 NumNodes=1", "", False),
    ("FAILED ExitCode=0:9 NodeList=n1 NumNodes=1", "", False),  # Slurm's own memory limit
    ("FAILED ExitCode=137:0 NodeList=n1 NumNodes=1", "", False),
    ("FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "slurmstepd: Exceeded job memory limit", False),
    ("FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "bash: line 1: 77 Killed    python -m", False),
    ("FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "Command 'a' died with <Signals.SIGKILL: 9>.", False),
    ("FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "returned non-zero exit status 137.", False),
    ("FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "returned non-zero exit status 13.", True),
]


@pytest.mark.parametrize(("state", "log", "blamed"), FAULTS)
def test_node_is_blamed_only_for_what_it_may_have_done(fake, state, log, blamed):
    fake("scontrol", f"echo 'JobId=7 Reason=None RunTime=00:00:02 JobState={state}'")
    assert look_up("7").may_be_its_nodes_fault([log]) == blamed
