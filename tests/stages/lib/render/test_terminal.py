"""Bars, sparklines, texts of a given width; the line of progress, on a terminal and in the log."""

import io
import re

from stages.lib import log
from stages.lib.render import terminal as progress
from stages.lib.render.terminal import ASCII, BLOCKS, bar, fit, glyphs_for, sparkline
from stages.lib.training.metrics.callback import ProgressLine


def test_bars_sparklines_and_texts_have_the_given_width_and_glyphs_that_the_output_has():
    bars = {0: "----", 0.49: "#---", 0.5: "##--", 1: "####", 7: "####"}
    assert {share: bar(share, 4, ASCII) for share in bars} == bars
    assert [fit("abc", 3, ASCII), fit("abcd", 3, ASCII), fit("abc", 0, ASCII)] == ["abc", "ab~", ""]
    assert fit("a\nb\x1b[2J", 20, ASCII) == "a b [2J"
    assert [glyphs_for(encoding) for encoding in ("UTF-8", "latin-1", None, "x")] == [BLOCKS, ASCII, ASCII, ASCII]
    assert sparkline([8, 7, 6, 5, 4, 3, 2, 1], 8, BLOCKS) == BLOCKS.levels[::-1]
    assert sparkline([4, 4, 0, 0], 2, ASCII) == "#_", "neighbours are averaged"
    assert sparkline([1.0, 1.0], 8, ASCII) == "__"
    assert sparkline([], 8, ASCII) == ""


class Terminal(io.StringIO):
    closed_by_user = False

    def isatty(self):
        return True

    def write(self, text):
        if self.closed_by_user:
            raise OSError(5, "Input/output error")
        return super().write(text)


def terminal_of(monkeypatch, tmp_path):
    """A terminal on which a step takes a millisecond, and a log. Not a fixture: pytest replaces stderr after those."""
    made, clock = Terminal(), iter(number / 1000 for number in range(10**6))
    monkeypatch.setattr(progress.sys, "stderr", made)
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    log.to(tmp_path / "log")
    return made


def test_progress_is_rewritten_on_a_terminal_and_logged_every_30_seconds(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch, tmp_path)
    line = progress.Progress("step", 60_000, 0)
    for step in range(1, 60_001):
        line.show(step, "loss 1.0")
    seen, logged = terminal.getvalue(), (tmp_path / "log").read_text()
    assert seen.count("\r\x1b[2Kstep ") == seen.count("step ") == 60_000 // 200 + 1
    assert seen.endswith("step 60000/60000 loss 1.0, 0:00 left\n") and seen.count("\n") == 1
    assert [int(step) for step in re.findall(r"step (\d+)/", logged)] == [1, 30_001, 60_000]


def test_log_line_replaces_the_progress_line(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch, tmp_path)
    log.to(None)
    progress.Progress("step", 10, 0).show(1, "loss 1.0")
    log.logger.info("save at step 1")
    assert terminal.getvalue().endswith(" left\r\x1b[2Ksave at step 1\n")


def test_time_left_has_the_evaluations_until_the_end_and_their_progress_is_shown(monkeypatch, tmp_path):
    """Steps of 1 s, an evaluation every 3 steps and after the last one: planned as 2 steps each, they take 10 s."""
    terminal, now = Terminal(), [0.0]
    monkeypatch.setattr(progress.sys, "stderr", terminal)
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    log.to(tmp_path / "log")
    line = ProgressLine(until=8, tokens_per_step=100, every=3, steps_per_evaluation=2.0)
    for step in range(1, 9):
        line.before_step(step)
        now[0] += 1
        line.after_step(step)
        if step % 3 == 0 or step == 8:
            for done in range(5):
                line.evaluating(step, done, 5)
                now[0] += 2
            line.metrics({"validation": {}, "validation_seconds": 10.0})
    left = dict(re.findall(r"step (\d)/8 .*?, (\S+) left", terminal.getvalue()))
    expected = ("0:13", "0:12", "0:11", "0:24", "0:23", "0:22", "0:11", "0:10")
    assert left == dict(zip("12345678", expected, strict=True))
    of_last = re.findall(r"validation at step 8: (\d)/5 \(\d+%\), (\S+) left", terminal.getvalue())
    assert of_last == [("1", "0:08"), ("2", "0:06"), ("3", "0:04"), ("4", "0:02")]


def test_training_continues_after_its_terminal_is_closed(monkeypatch, tmp_path):
    terminal = terminal_of(monkeypatch, tmp_path)
    line = progress.Progress("step", 60_000, 0)
    line.show(1, "loss 1.0")
    terminal.closed_by_user = True
    for step in range(2, 60_001):
        line.show(step, "loss 1.0")
    assert "step 60000/60000" in (tmp_path / "log").read_text()


def test_items_that_are_worked_on_are_counted_on_the_terminal_that_is_given(monkeypatch, tmp_path):
    other = terminal_of(monkeypatch, tmp_path)
    made = Terminal()
    assert list(progress.track("layers", ["a", "b"], made)) == ["a", "b"]
    assert made.getvalue().endswith("\r\x1b[2Klayers 2/2 (100%), 0:00 left\n") and other.getvalue() == ""
    assert (tmp_path / "log").read_text().endswith("layers 2/2 (100%), 0:00 left\n")


def test_nothing_is_shown_where_no_terminal_is(monkeypatch, tmp_path):
    terminal_of(monkeypatch, tmp_path)
    made = io.StringIO()
    assert list(progress.track("layers", [], made)) == []
    assert list(progress.track("layers", ["a"], made)) == ["a"] and made.getvalue() == ""
