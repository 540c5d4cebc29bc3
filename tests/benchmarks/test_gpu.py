"""The checks of one GPU: their dry form on the CPU, and what a step does when it fails or takes too long."""

import json
import subprocess
import sys
import threading
import time

import pytest

from benchmarks.gpu import ceilings, correctness, parity, peers, speed
from benchmarks.gpu.__main__ import GROUPS, main
from benchmarks.gpu.session import DRY_THREADS, GIB, Session, Skipped, Step, StepError, check_gpu
from stages.lib import recipe
from stages.lib.errors import UserError
from stages.pretrain import PretrainRecipe
from tests.helpers import ranks
from tests.helpers.training import HOME, environment
from tools.plan import devices


@pytest.fixture
def session(tmp_path):
    return Session(tmp_path / "work", tmp_path / "out.json", minutes=1, dry=True, device=None)


@pytest.fixture
def forks(monkeypatch):
    """Let the commands of a session run in forks of a process that has imported torch, except those to be killed."""
    started, lock = Session.command, threading.Lock()

    def command(session, step, *words, on_cpu=False, kill_when=None):
        if kill_when is not None:
            return started(session, step, *words, on_cpu=on_cpu, kill_when=kill_when)
        with lock:
            code, printed = ranks.run_module(0, words[0], words[1:])
        if code:
            raise StepError(f"exit code {code}: {printed.strip().splitlines()[-1]}", code=code)
        return False

    monkeypatch.chdir(HOME)
    monkeypatch.setenv("OMP_NUM_THREADS", DRY_THREADS)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr(Session, "command", command)


@pytest.mark.long
def test_the_dry_form_takes_a_part_of_each_group_on_the_cpu(forks, tmp_path, capsys):
    output = tmp_path / "gpu.json"
    code = main(["--dry", "--work", str(tmp_path / "work"), "--output", str(output)])
    printed = capsys.readouterr().out
    assert code == 0, printed
    steps = json.loads(output.read_text())["steps"]
    states = {name: step["state"] for name, step in steps.items()}
    skipped = {name: steps[name]["line"] for name, state in states.items() if state != "ok"}
    assert {states[name] for name in skipped} == {"skipped"}
    (too_large,) = [name for name, line in skipped.items() if line.startswith("its plan needs ")]
    in_float8 = [name for name in skipped if "float8" in name and "CUDA graphs" not in name]
    graphed = [name for name in skipped if "CUDA graphs" in name]
    assert {*in_float8, *graphed, too_large} == set(skipped) and set(parity.PAIRS) <= set(skipped)
    assert all("float8 requires an NVIDIA GPU of compute capability 8.9" in skipped[name] for name in in_float8)
    assert all("requires an NVIDIA GPU" in skipped[name] for name in graphed)
    assert any("cuda_graphs requires an NVIDIA GPU, got a CPU" in line for line in skipped.values())
    assert steps["float32"]["losses"] == steps["float32"]["cpu_losses"]
    assert steps["killed and resumed"]["resumes"] == 1
    assert steps["ceilings"]["matrix_tflops"] > 0
    assert printed.splitlines()[-1] == f"{len(steps) - len(skipped)} ok, 0 FAILED, {len(skipped)} skipped"


def test_the_bound_of_a_cell_is_by_measured_ceilings_or_the_datasheet(session):
    cell = speed.Cell(shape="llama3-1b", micro_batch_size=4)
    assert speed.bound_of(cell, session) == {}
    session.device = "NVIDIA H200"
    by_datasheet = speed.bound_of(cell, session)
    rates = {"copy_gb_per_second": 0.45 * 4800, "matrix_tflops": 0.45 * 989}
    (session.made / ceilings.FILE).write_text(json.dumps(rates))
    measured = speed.bound_of(cell, session)
    assert measured["tokens_per_second"] == pytest.approx(by_datasheet["tokens_per_second"] / 2)
    assert 60_128 < by_datasheet["tokens_per_second"] < 0.9 * 989e12 / 9.03e9  # what was seen, and products alone
    assert list(measured["seconds"]) == ["products", "attention", "copies", "embedding", "loss", "optimizer"]


LARGE = [cell for cell in speed.GRID if cell.shape == "llama3-8b"]
BATCHES = [cell for cell in LARGE if cell.micro_batch_size * cell.accumulation * cell.seq_len == 32_768]


@pytest.mark.parametrize(
    ("card", "equal", "batches"),
    [(139.8, [(8, "none"), (2, "none")], 4), (78.0, [(8, "none"), (2, "full")], 2)],
    ids=["H200", "H100"],
)
def test_each_card_has_cells_that_fit(monkeypatch, session, card, equal, batches):
    monkeypatch.setattr(session, "dry", False)
    monkeypatch.setattr(speed, "memory_of_gpu", lambda: card * GIB)
    taken = [speed.fitting(session, *cells)[0] for cells in speed.EQUAL.values()]
    assert [(cell.micro_batch_size, cell.mode) for cell in taken] == equal and set(taken) <= set(speed.GRID)
    fit = [speed.planned_bytes(cell, session) + devices.RESERVED <= card * GIB for cell in BATCHES]
    assert fit.count(True) == batches
    assert speed.fitting(session, *speed.PROFILES["llama3-8b"])
    monkeypatch.setattr(speed, "memory_of_gpu", lambda: 24 * GIB)
    with pytest.raises(Skipped, match=r"its plan needs \d+\.\d GiB, and the card has 24\.0"):
        speed.fitting(session, *speed.EQUAL["llama3-8b"])


def test_transformers_is_measured_at_its_own_settings_and_at_those_of_the_cell_that_fits(monkeypatch, session, capsys):
    monkeypatch.setattr(session, "dry", False)
    monkeypatch.setattr(speed, "memory_of_gpu", lambda: 100 * GIB)
    monkeypatch.setattr(
        speed, "planned_bytes", lambda cell, _: (120 if cell is speed.EQUAL[cell.shape][0] else 60) * GIB
    )
    commands = []

    def train(session, name, module, options, output):
        commands.append(options)
        return {"tokens_per_second": 5.0, "peak_memory_mb": 1, "settings": "said"}

    monkeypatch.setattr(speed, "train", train)
    session.found[speed.EQUAL["llama3-1b"][1].name] = {"tokens_per_second": 60128.4}
    session.run(peers.steps(session))
    assert [options[5:] for options in commands] == [
        [2, "--no-compile", "--activation-checkpointing", "full", "--weights-dtype", "bfloat16"],
        [4, "--activation-checkpointing", "none", "--weights-dtype", "float32"],
        [2, "--no-compile", "--activation-checkpointing", "full", "--weights-dtype", "bfloat16"],
        [2, "--activation-checkpointing", "full", "--weights-dtype", "bfloat16"],
    ]
    assert "): 5 tokens/s (ours 60,128), peak 0.0 GiB; said" in capsys.readouterr().out


def test_a_card_too_small_for_any_cell_is_refused(monkeypatch, session):
    monkeypatch.setattr(speed, "planned_bytes", lambda cell, session: 30 * GIB if "8b" in cell.shape else 18 * GIB)
    speed.check_memory(session, 20 * GIB)
    with pytest.raises(UserError, match=r"smallest cell of speed needs 20\.0 GiB by its plan, and the card has 15\.0"):
        speed.check_memory(session, 15 * GIB)


def test_a_machine_without_a_gpu_is_one_line(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu", "--work", str(tmp_path)]
    done = subprocess.run(
        command, check=False, cwd=HOME, env=environment() | {"CUDA_VISIBLE_DEVICES": ""}, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("gpu: torch ") and "finds no GPU" in line


@pytest.mark.parametrize(
    ("free", "total", "capability", "sentence"),
    [
        (7, 8, (8, 0), "the GPU must have at least 10 GiB of memory, and X has 8.0"),
        (70, 80, (9, 0), "10.0 GiB of X are in use"),
        (32, 32, (7, 0), r"the GPU must have compute capability 8\.0 for bfloat16, and X has 7\.0"),
    ],
)
def test_a_small_or_old_card_and_another_process_are_refused(monkeypatch, free, total, capability, sentence):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * GIB, total * GIB))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "X")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    with pytest.raises(UserError, match=sentence):
        check_gpu()


def test_a_step_that_fails_or_takes_too_long_does_not_stop_the_others(session, capsys):
    def fails():
        session.command("fails", "stages.list", "--name")

    def hangs():
        session.command("hangs", "http.server", "0")

    begun = time.monotonic()
    session.run(
        [
            Step(name="fails", take=fails, minutes=1),
            Step(name="hangs", take=hangs, minutes=1 / 60),
            Step(name="breaks", take=lambda: 1 / 0, minutes=1),
            # torch ends the process if a second thread uses fake tensors, as plans do
            Step(name="works", take=lambda: ("well", {"thread": threading.current_thread().name}), minutes=1),
        ]
    )
    assert session.end() == 1
    assert time.monotonic() - begun < 30
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("FAILED  fails") and "exit code 2: " in lines[0]
    assert "took longer than its limit; see " in lines[1]
    assert lines[2].endswith("ZeroDivisionError: division by zero")
    assert lines[3].startswith("ok      works") and lines[4] == "1 ok, 3 FAILED, 0 skipped"
    assert json.loads(session.output.read_text())["steps"]["works"]["thread"] == "MainThread"


def test_a_peer_is_measured_by_its_command(session, capsys, tmp_path):
    program = tmp_path / "peer of ours.py"
    program.write_text(
        "import json, sys; print('step 1'); print(json.dumps({'tokens_per_second': 12345.6, 'peak_memory_gb': 2.0}))"
    )
    commands = [
        f"titan, 8b={sys.executable} '{program}'",
        f"broken={sys.executable} -c 'print(7)'",
        "missing=no-program",
    ]
    session.peers = peers.named(commands)
    session.run(step for step in peers.steps(session) if step.name in session.peers)
    well, bad, missing = capsys.readouterr().out.splitlines()
    assert well.startswith("ok      titan, 8b") and well.endswith(": 12,346 tokens/s, peak 1.9 GiB")
    assert bad.endswith("the last line must be a JSON object with tokens_per_second, got '7'")
    assert missing.startswith("FAILED  missing") and "no-program" in missing
    assert json.loads(session.output.read_text())["steps"]["titan, 8b"]["tokens_per_second"] == 12345.6


@pytest.mark.parametrize("given", [["titan"], ["=run"], ["titan="], ["titan='x"], ["a=x", "a=y"]])
def test_a_peer_that_is_no_name_and_command_is_one_line(given, tmp_path, capsys):
    words = [word for text in given for word in ("--peer", text)]
    assert main(["--work", str(tmp_path), "--dry", *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("gpu: --peer must ")


def test_only_the_steps_that_are_named_run_and_one_must(monkeypatch, tmp_path, capsys):
    steps = [Step(name=name, take=lambda: ("", {}), minutes=1) for name in "abc"]
    monkeypatch.setitem(GROUPS, "peers", lambda session: steps)
    command = ["--dry", "--work", str(tmp_path), "--output", str(tmp_path / "out.json"), "--groups", "peers", "--only"]
    assert main([*command, "c", "a"]) == 0
    assert list(json.loads((tmp_path / "out.json").read_text())["steps"]) == ["a", "c"]
    assert main([*command, "8b", "d"]) == 2
    assert capsys.readouterr().err == "gpu: no step of peers has 8b or d in its name\n"


def test_no_step_begins_after_the_time(session):
    session.ends = time.monotonic() - 1
    session.run([Step(name="late", take=lambda: ("", {}), minutes=1)])
    assert session.found["late"]["line"] == "no time is left"


RECIPES = {name: (mode.recipe, mode.operation) for name, mode in correctness.MODES.items()}
RECIPES |= {
    f"{name}, {has_option}": parity.keys_of(name, pair, has_option)
    for name, pair in parity.PAIRS.items()
    for has_option in (True, False)
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_of_each_mode_and_pair_is_valid(name):
    keys, operation = RECIPES[name]
    data = {"steps": 40, "micro_batch_size": 4} | correctness.RECIPE | keys | operation
    recipe.load(PretrainRecipe, data, name).check_ranks(1, name)


def test_a_pair_whose_losses_differ_is_noticed():
    pair, same = parity.Pair(start=1e-3, first=1e-2, last=0.1), [4.0, 3.0, 2.0] * 4
    assert parity.compare(pair, same, list(same))[0] == "12 equal losses"
    assert parity.compare(pair, [4.001, *same[1:]], same)[0].startswith("losses differ by 2.5e-04 in the first step")
    for changed in ([4.01, *same[1:]], [4.0, 3.1, *same[2:]], [*same[:7], *(1.2 * loss for loss in same[7:])]):
        with pytest.raises(StepError, match="at most 1e-03, 1e-02 and 1e-01 are expected"):
            parity.compare(pair, changed, same)
    with pytest.raises(StepError):
        parity.compare(pair, [float("nan"), *same[1:]], same)


def test_losses_that_differ_are_noticed():
    assert correctness.difference([2.0] * 12, [2.0] * 12) == (0, 0)
    first, last = correctness.difference([2.0, 2.002] + [2.0] * 10, [2.0] * 12)
    assert (first, last) == (pytest.approx(1e-3), 0)
    assert correctness.difference([2.0] * 7 + [2.2] * 5, [2.0] * 12)[1] == pytest.approx(0.1)
    with pytest.raises(StepError, match="11 steps have a loss, and 12 on the CPU"):
        correctness.difference([2.0] * 11, [2.0] * 12)
