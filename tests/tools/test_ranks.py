"""The number of processes that `workflow/launch auto` starts, by a fake nvidia-smi, and the launcher that uses it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch.cuda

from stages.lib.distributed import gpus
from tests.workflow.checkout import HOME, write_commands
from tools import ranks

TRAINING = {"global_batch_size": 8, "micro_batch_size": 2}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A function that lets nvidia-smi list GPUs, some of them divided by MIG; `code`: its exit code."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:{Path(sys.executable).parent}:/usr/bin:/bin")

    def install(num_gpus, mig=(), code=0):
        lines = []
        for gpu in range(num_gpus):
            lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu}a-11)")
            lines += [f"  MIG 1g.10gb     Device  {part}: (UUID: MIG-{gpu}{part}-22)" for part in mig if gpu == 0]
        text = "\n".join(lines) if code == 0 else "NVIDIA-SMI has failed because it couldn't communicate"
        script = f"[ \"$*\" = -L ] || exit 3\ncat <<'END'\n{text}\nEND\nexit {code}"
        write_commands(tmp_path, {"nvidia-smi": script})

    return install


def chosen(capfd, *words):
    """Return (processes, GPUs) by the tool, and its warnings."""
    assert ranks.main(["--", *words]) == 0
    printed = capfd.readouterr()
    return tuple(map(int, printed.out.split())), printed.err


@pytest.mark.parametrize(
    ("num_gpus", "keys", "expected"),
    [(0, {}, 2), (4, {}, 4), (3, {}, 2), (5, {"micro_batch_size": 8}, 1)]
    + [(0, {"global_batch_size": 3, "micro_batch_size": 1}, 1)]
    + [(3, {"global_batch_size": "auto", "steps": 300, "seq_len": 256, "micro_batch_size": 1}, 2)],  # a batch of 2
)
def test_a_training_has_one_rank_per_gpu_two_without_any_and_no_more_than_divide_the_batch(
    machine, capfd, num_gpus, keys, expected
):
    machine(num_gpus)
    identity, operation = TRAINING | keys, {}
    operation["micro_batch_size"] = identity.pop("micro_batch_size")
    words = ["--recipe", json.dumps(identity), "--corpus", "x", "--operation", json.dumps(operation)]
    numbers, warning = chosen(capfd, "-m", "stages.finetune", *words)
    assert numbers == (expected, num_gpus)
    warned = f"{expected} of {num_gpus} GPUs are used: the largest number of ranks that divides global_batch_size "
    assert warning.startswith(warned) if 0 < expected < num_gpus else warning == ""


@pytest.mark.parametrize(("num_gpus", "keys", "expected"), [(0, {}, 1), (3, {}, 3), (3, {"backend": "vllm"}, 1)])
def test_scoring_has_one_rank_per_gpu_unless_one_process_uses_all(machine, capfd, num_gpus, keys, expected):
    machine(num_gpus)
    assert chosen(capfd, "-m", "stages.evaluate", "--recipe", json.dumps(keys))[0] == (expected, num_gpus)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("", 0), ("-1,0", 0), ("2, 1", 2), ("0,7,1", 1), ("1,1", 0), ("x", 0)]
    + [("GPU-1a", 1), ("GPU-0a-11,GPU-2a-11", 2), ("GPU-9", 0), ("GPU-", 0)],
)
def test_gpus_are_counted_as_cuda_counts_them(machine, monkeypatch, visible, expected):
    machine(3)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.count() == expected
    monkeypatch.setattr(torch.cuda, "_raw_device_count_nvml", lambda: 3)
    monkeypatch.setattr(torch.cuda, "_raw_device_uuid_nvml", lambda: [f"GPU-{gpu}a-11" for gpu in range(3)])
    assert torch.cuda._device_count_nvml() == expected, "torch counts otherwise"


@pytest.mark.parametrize("visible", [None, "0", "MIG-00-22", "MIG-00-22,MIG-01-22"])
def test_a_gpu_divided_by_mig_is_one_device(machine, monkeypatch, visible):
    machine(1, mig=(0, 1))
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus.count() == 1


def test_a_driver_that_is_broken_or_hangs_is_no_gpu_and_a_sentence(machine, tmp_path, monkeypatch, capfd):
    machine(2, code=9)
    numbers, warning = chosen(capfd, "-m", "stages.pretrain", "--recipe", json.dumps(TRAINING))
    assert numbers == (2, 0)
    assert warning == (
        "no GPU is used: `nvidia-smi -L` failed: NVIDIA-SMI has failed because it couldn't communicate\n"
    )
    write_commands(tmp_path, {"nvidia-smi": "exec sleep 60"})
    monkeypatch.setattr(gpus, "TIMEOUT_SECONDS", 0.1)
    numbers, warning = chosen(capfd, "-m", "stages.evaluate")
    assert numbers == (1, 0) and "timed out" in warning


def test_a_recipe_that_cannot_be_read_is_left_to_the_stage(machine, capfd):
    machine(2)
    assert chosen(capfd, "-m", "stages.pretrain", "--recipe", "missing.json") == ((2, 2), "")
    assert chosen(capfd, "-m", "stages.pretrain", "--recipe", json.dumps(TRAINING)) == ((2, 2), "")


@pytest.mark.parametrize(("num_gpus", "world"), [(0, 2), (1, 1), (3, 2)])
def test_the_launcher_starts_as_many_and_tells_them_the_gpus(machine, tmp_path, num_gpus, world):
    machine(num_gpus)
    (tmp_path / "worker.py").write_text(
        "import os\n"
        "from pathlib import Path\n"
        "Path('rank' + os.environ['RANK']).write_text(os.environ['WORLD_SIZE'] + ' ' + os.environ['CARAVAN_GPUS'])\n"
    )
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}:{HOME}"}
    command = [HOME / "workflow/launch", "auto", "-m", "worker", "--recipe", json.dumps(TRAINING)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [path.read_text() for path in sorted(tmp_path.glob("rank?"))]
    assert told == [f"{world} {num_gpus}"] * world
    assert done.stderr.startswith("2 of 3 GPUs are used: ") if num_gpus == 3 else done.stderr == ""
