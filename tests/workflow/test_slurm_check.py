"""Jobs that a cluster can never run are reported, and no others; tests/slurm checks this on a real cluster."""

import pytest

from scripts.slurm.check import fewer_nodes, find_mistake, submit_limit, too_many_jobs, unknown_account
from scripts.slurm.jobs import look_up, parse_gpus, parse_sinfo

CLUSTER = """\
cpu|100|64|256000|2-00:00:00|(null)
gpu|8|128|1000000|12:00:00|gpu:h100:8(S:0-1),lustre:1
gpu|2|96|2000000|12:00:00|gpu:a100:4
all|110|64|256000|infinite|(null)
hidden|0|0|0|infinite|(null)
"""


def message(**resources):
    return find_mistake("pretrain", resources, parse_sinfo(CLUSTER))


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({"slurm_partition": "nope"}, "`slurm_partition` of pretrain must be one of all, cpu, gpu, hidden, got nope"),
        ({"slurm_partition": "cpu,nope"}, "got nope"),
        ({"gres": "gpu:16"}, "`gres` of pretrain requests 16 GPUs per node, but this cluster has at most 8"),
        ({"gres": "gpu:1", "slurm_partition": "cpu"}, "requests 1 GPUs per node, but partition cpu has at most 0"),
        ({"gres": "gpu:A100:8"}, "requests 8 a100 GPUs per node, but this cluster has at most 4"),
        (
            {"mem_mb": 3_000_000},
            "`mem_mb` of pretrain requests 3000000 MB per node, but this cluster has at most 2000000",
        ),
        ({"threads": 65, "slurm_partition": "cpu"}, "requests 65 cores per node, but partition cpu has at most 64"),
        ({"runtime": 721, "slurm_partition": "gpu"}, "requests 721 minutes, but partition gpu has at most 720"),
        ({"runtime": 2881, "slurm_partition": "gpu,cpu"}, "partition gpu,cpu has at most 2880"),
        (
            {"nodes": 11, "slurm_partition": "gpu"},
            "`nodes` of pretrain requests 11 nodes, but partition gpu has at most 10 that fit",
        ),
        (
            {"nodes": 9, "gres": "gpu:8", "slurm_partition": "gpu"},
            "requests 9 nodes, but partition gpu has at most 8 that fit",
        ),
        (
            {"gres": "gpu:h100:1", "threads": 64, "mem_mb": 2_000_000},
            "requests 2000000 MB per node, but this cluster has at most 1000000 on nodes with its other resources",
        ),
    ],
)
def test_missing_resources_are_one_sentence(resources, words):
    assert words in message(**resources)
    assert message(**resources).startswith("the profile's `")


@pytest.mark.parametrize(
    "resources",
    [
        {},
        {"gres": "gpu:8", "nodes": 8, "runtime": 720, "mem_mb": 1_000_000, "threads": 128, "slurm_partition": "gpu"},
        {"gres": "gpu:a100:4,lustre:1", "nodes": 2},
        {"slurm_partition": "cpu,gpu", "runtime": 2880},
        {"slurm_partition": "hidden", "nodes": 3},
        {"slurm_partition": "gpu", "runtime": 9999, "nodes": 99, "qos": "long"},
        {"slurm_partition": "elsewhere", "cluster": "other"},
        {"mem_mb": 9_999_999, "mem_mb_per_cpu": 100},
        {"mem_mb": "<TBD>"},
    ],
)
def test_jobs_that_may_run_are_accepted(resources):
    assert message(**resources) is None


def test_gpus_without_a_type_count_for_every_type():
    assert find_mistake("pretrain", {"gres": "gpu:h100:4"}, parse_sinfo("all|1|32|256000|infinite|gpu:4")) is None


def test_unknown_cluster_accepts_every_job():
    assert find_mistake("pretrain", {"slurm_partition": "gpu", "nodes": 99, "gres": "gpu:9"}, []) is None


@pytest.mark.parametrize("text", ["slurm_load_partitions: Unable to contact", "all|4|32+|256000|infinite|gpu:4"])
def test_other_output_of_sinfo_is_an_error(text):
    with pytest.raises(ValueError, match="invalid literal"):
        parse_sinfo(text)


@pytest.mark.parametrize(
    ("gres", "gpus"),
    [
        ("(null)", {}),
        ("gpu", {"": 1}),
        ("gpu:4", {"": 4}),
        ("gres/gpu:2", {"": 2}),
        ("gpu:h100", {"h100": 1}),
        ("gpu:h100:8(S:0,1),gpu:1g.10gb:7(S:0),lustre:1", {"h100": 8, "1g.10gb": 7}),
        ("mps:400,gpu:2", {"": 2}),
    ],
)
def test_gpus_are_parsed_from_gres(gres, gpus):
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
def test_submit_limit_is_the_lower_one_of_account_and_qos(tmp_path, monkeypatch, associations, qos, limit):
    (tmp_path / "associations").write_text(associations)
    (tmp_path / "qos").write_text(qos)
    (tmp_path / "sacctmgr").write_text(f"#!/bin/bash\ncat {tmp_path}/$4\n")
    (tmp_path / "sacctmgr").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert submit_limit(None, None) == limit
    if limit:
        assert too_many_jobs(limit, 100, [{}]) is None
        assert too_many_jobs(200, 100, [{}]) == (
            f"the profile's `jobs` must be at most {limit}, as many as you may submit (MaxSubmitJobs), got 100"
        )


@pytest.mark.parametrize(
    ("record", "log", "blamed"),
    [
        ("JobState=FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "module: cuda/12.8 not found", True),
        ("JobState=NODE_FAIL ExitCode=0:1 NodeList=n1 NumNodes=1", "", True),
        ("JobState=NODE_FAIL ExitCode=0:1 NodeList=n[1-2] NumNodes=2", "", False),
        ("JobState=NODE_FAIL ExitCode=0:0 NodeList=(null) NumNodes=1", "", False),
        ("JobState=CANCELLED ExitCode=0:0 NodeList=(null) NumNodes=1", "", False),
        ("JobState=CANCELLED ExitCode=0:15 NodeList=n1 NumNodes=1", "", False),
        ("JobState=TIMEOUT ExitCode=0:15 NodeList=n1 NumNodes=1", "", False),
        ("JobState=PREEMPTED ExitCode=0:0 NodeList=n1 NumNodes=1", "", False),
        ("JobState=OUT_OF_MEMORY ExitCode=0:125 NodeList=n1 NumNodes=1", "", False),
        ("JobState=FAILED ExitCode=0:9 NodeList=n1 NumNodes=1", "", False),  # Slurm's own memory limit
        ("JobState=FAILED ExitCode=137:0 NodeList=n1 NumNodes=1", "", False),
        ("JobState=FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "slurmstepd: Exceeded job memory limit", False),
        ("JobState=FAILED ExitCode=1:0 NodeList=n1 NumNodes=1", "bash: line 1: 77 Killed    python -m", False),
    ],
)
def test_node_is_blamed_only_for_what_it_may_have_done(tmp_path, monkeypatch, record, log, blamed):
    (tmp_path / "scontrol").write_text(f"#!/bin/bash\necho 'JobId=7 Reason=None RunTime=00:00:02 {record}'\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert look_up("7").may_be_its_nodes_fault([log]) == blamed
