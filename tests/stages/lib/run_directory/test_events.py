"""Events with damage: no reader of them fails."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.run_directory import history
from stages.lib.run_directory.events import KINDS, read_events
from stages.lib.tokens import ledger
from tools.status import __main__ as status

COMMON = {"time": 1.5, "step": 5, "world_size": 1}
KEYS = {"reason": "KeyError: x", "samples": [60, 96], "stamp": "2027", "seconds": 5.0, "rank": 0, "host": "a"}
EVENTS = [COMMON | {"event": kind} | {key: KEYS[key] for key in keys} for kind, keys in KINDS.items()]
EVENTS += [COMMON | {"event": "resume", "steps": 30}, COMMON | {"event": "save", "seconds": 0.25}]
RANKS = {"max": 0.2, "median": 0.1, "slowest": "a"}
METRICS = [
    {"step": step, "tokens": step * 96, "loss": 5.0, "samples": [step * 12 - 12, step * 12], "time": float(step)}
    | {"tokens_per_second": 500.0, "tokens_per_second_overall": 400.0, "ranks": RANKS}
    for step in range(1, 11)
]
METRICS.append(
    {"step": 10, "tokens": 960, "validation": {"web": {"loss": 4.0, "loss_bits_per_byte": 1.5}}, "time": 11.0}
)


def lines(entries):
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


FILES = {"events.jsonl": lines(EVENTS), "metrics.jsonl": lines(METRICS)}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    made = tmp_path_factory.mktemp("results") / "runs" / "base" / "train" / "0123456789abcdef"
    made.mkdir(parents=True)
    return made


def use(directory):
    """Read a run directory as a start, status, the summary and the ledger do."""
    events = read_events(directory)
    status.describe(directory, [])
    history.troubles(events)
    ledger.read(directory, 12)
    ledger.last_entries(directory, events)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(history.journal, "append", lambda *_: None)
        try:
            history.begin_attempt(directory, automatic=True)
        except UserError as error:
            assert "crashed twice" in str(error)
    return events


def test_whole_files_are_read_completely(directory, caplog):
    for name, content in FILES.items():
        (directory / name).write_bytes(content)
    assert use(directory) == EVENTS
    assert list(history.entries(directory, [])) == METRICS
    assert caplog.messages == []


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_flipped_bit_costs_at_most_the_lines_beside_it(directory, name, data):
    for other, content in FILES.items():
        (directory / other).write_bytes(content)
    content = bytearray(FILES[name])
    bit = data.draw(st.integers(0, len(content) * 8 - 1))
    content[bit // 8] ^= 1 << bit % 8
    (directory / name).write_bytes(content)
    events = use(directory)
    assert len(events) >= len(EVENTS) - 2
    assert all(event in events for event in EVENTS[: content[: bit // 8].count(b"\n")])


@pytest.mark.parametrize(
    "damaged",
    [
        {"event": "rollbacj", "samples": [60, 96]},
        {"event": "rollback"},
        {"event": "rollback", "samples": [60]},
        {"event": ["rollback"], "samples": [60, 96]},
        {"event": "save", "step": True},
        {"event": "save", "time": float("nan")},
        {"event": "hang"},
    ],
)
def test_line_without_what_its_kind_needs_is_no_event(tmp_path, damaged, caplog):
    (tmp_path / "events.jsonl").write_bytes(lines([EVENTS[0], COMMON | damaged]))
    assert read_events(tmp_path) == EVENTS[:1]
    (line,) = caplog.messages
    assert "events.jsonl: skipping 1 line that is damaged or torn by a kill, the first at byte " in line
