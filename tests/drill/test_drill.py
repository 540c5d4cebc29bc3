"""Training survives the drill, and the drill notices if it does not."""

import json

import pytest

from tests.drill import __main__ as command
from tests.drill import ledger
from tests.drill.kinds import KINDS
from tests.helpers.training import run_directory


def drill(directory, **options):
    """Run the command; returns its exit code."""
    given = [f"--{name}={value}" for name, value in options.items() if not isinstance(value, list)]
    for name, values in options.items():
        given += [f"--{name}", *map(str, values)] if isinstance(values, list) else []
    return command.main([*given, "--directory", str(directory)])


@pytest.mark.landing
@pytest.mark.long
@pytest.mark.timeout(1800)
def test_training_killed_in_each_way_ends_in_the_bits_of_an_undisturbed_one(tmp_path, capfd):
    code = drill(tmp_path, kills=len(KINDS), seed=1)
    printed = capfd.readouterr().out
    assert code == 0, printed
    for kind in KINDS:
        assert f"{kind:<12}     1 " in printed
    assert "final weights: bit-identical to the undisturbed run's" in printed
    assert "ledger: each of " in printed


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_training_survives_kills_at_changing_world_sizes(tmp_path, capfd):
    assert drill(tmp_path, kills=12, worlds=[1, 2, 3, 4], seed=2) == 0, capfd.readouterr().out


def entries(steps):
    """Return the ledger of a faultless run of 4 samples per step."""
    return [{"step": step, "samples": [4 * step - 4, 4 * step], "loss": 1.0 / step} for step in steps]


def test_ledger_of_a_run_that_resumed_from_a_checkpoint_has_no_fault():
    assert list(ledger.faults(entries([1, 2, 3, 4, 3, 4, 5]), 5, 4)) == []


@pytest.mark.parametrize(
    ("written", "fault"),
    [
        (entries([1, 2, 4, 5]), "no entry of step 3"),
        (entries([1, 2, 4, 3, 4, 5]), "step 4 was trained when 2 was the last before it"),
        (entries([1, 2, 3, 4, 5, 6]), "step 6 was trained, beyond the last"),
        (
            [*entries([1, 2, 3, 4]), {"step": 5, "samples": [12, 16], "loss": 0.2}],
            "step 5 trained samples [12, 16], not [16, 20]",
        ),
    ],
)
def test_ledger_with_lost_or_repeated_samples_has_a_fault(written, fault):
    assert fault in list(ledger.faults(written, 5, 4))


def test_difference_looks_at_repeated_steps_too():
    wrong = [*entries([1, 2, 3]), {"step": 3, "samples": [8, 12], "loss": 0.5}]
    assert ledger.difference(wrong, entries([1, 2, 3]), "loss") == pytest.approx(0.5 - 1 / 3)
    assert ledger.difference(entries([1, 2, 2, 3]), entries([1, 2, 3]), "loss") == 0


def test_line_that_a_kill_cut_is_not_an_entry(tmp_path):
    path = tmp_path / "train/digest/metrics.jsonl"
    path.parent.mkdir(parents=True)
    lines = [json.dumps(entry) for entry in entries([1, 2])]
    path.write_text(f"{lines[0]}\n{lines[1][:20]}\n{lines[1]}\n{lines[0][:10]}")
    read, position = ledger.read(tmp_path)
    assert read == entries([1, 2])
    assert ledger.read(tmp_path, position) == ([], position)
    assert run_directory(tmp_path) == path.parent
