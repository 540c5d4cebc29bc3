"""Output of Snakemake while it works: one line per start and end of a job."""

import contextlib
import io
import json
import logging
import re
import sqlite3
import time

import pytest
from snakemake.logging import LogEvent

import snakemake_logger_plugin_caravan as plugin
from scripts import last_words

CLOCK = r"\d\d:\d\d:\d\d"


def test_each_job_is_one_line_at_its_start_and_one_at_its_end_and_the_log_keeps_all(pretending, small):
    given = ["models", "--profile", "profiles/local", "--configfile", pretending.write_config(small)]
    printed = pretending.snakemake(*given).stderr
    assert re.search(
        rf"^{CLOCK} start pretrain base 2\n{CLOCK} done  pretrain base 2, \d+ s \(\d of \d\)$", printed, re.M
    )
    starts, ends = (re.findall(rf"^{CLOCK} {word} (\w+)", printed, re.M) for word in ("start", "done "))
    jobs = ["list", "train_tokenizer", "tokenize", "index", "pretrain", "pretrain"]
    assert sorted(starts) == sorted(jobs) and sorted(ends) == sorted([*jobs, "models"])
    assert len(printed.splitlines()) <= 2 * len(jobs) + 8, printed
    assert printed.splitlines()[-1] == "models made: results/runs/base/models/00000002.json, and 1 more"
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", printed), "no control characters where no terminal is"
    (log,) = (pretending.path / ".snakemake/log").glob("*.snakemake.log")
    kept = log.read_text()
    assert "localrule pretrain:\n    input: results/tokens/main/manifest.json\n" in kept
    assert "reason: Missing output files" in kept and "Finished jobid" in kept and "steps (100%) done" in kept


def test_a_failed_job_is_shown_as_snakemake_shows_it_with_its_log(pretending, small):
    (pretending.path / "stages/list.py").write_text(
        "import sys\n"
        "lines = ''.join(f'line {number}\\n' for number in range(50)) + '2026 ERROR list: no file\\n'\n"
        "open(sys.argv[sys.argv.index('--log') + 1], 'w').write(lines)\n"
        "sys.exit(2)\n"
    )
    given = ["tokenizers", "--profile", "profiles/local", "--configfile", pretending.write_config(small)]
    printed = pretending.snakemake(*given, check=False).stderr
    assert re.search(
        r"Error in rule list:\n    message: None\n    jobid: \d\n    output: results/sources/code/list.json", printed
    )
    assert "python -m stages.list" in printed and "(command exited with non-zero exit code)" in printed
    assert all(f"line {number}\n" in printed for number in range(50))
    assert printed.splitlines()[-1] == "list: no file" and " made" not in printed
    assert not (pretending.path / "results/sources/code/list.json").exists()


def test_verbose_shows_snakemakes_blocks(pretending, small):
    given = ["results/sources/code/list.json", "--profile", "profiles/local", "--configfile"]
    printed = pretending.snakemake(*given, pretending.write_config(small), "--verbose").stderr
    assert "localrule list:\n    output: results/sources/code/list.json" in printed
    assert not re.search(rf"{CLOCK} start", printed)


OTHER_LOGGER = """
from snakemake_interface_logger_plugins.base import LogHandlerBase

class LogHandler(LogHandlerBase):
    writes_to_stream, writes_to_file, has_filter, has_formatter, needs_rulegraph = True, False, True, True, False

    def emit(self, record):
        print("other:", record.__dict__.get("rule_name"), flush=True)
"""


def test_another_logger_takes_its_place(pretending, small, tmp_path):
    package = tmp_path / "plugins/snakemake_logger_plugin_other"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(OTHER_LOGGER)
    given = ["results/sources/code/list.json", "--profile", "profiles/local", "--logger", "other", "--configfile"]
    environment = {"PYTHONPATH": str(package.parent)}
    done = pretending.python(
        "-m", "snakemake", *given, pretending.write_config(small), environment=environment, cwd=pretending.path
    )
    assert "other: list" in done.stdout and not re.search(rf"{CLOCK} start", done.stdout + done.stderr)


@pytest.mark.standards
def test_snkmt_works_beside_it(pretending, small, tmp_path):
    pytest.importorskip("snakemake_logger_plugin_snkmt", reason="each start of Snakemake would import it: not in dev")
    path = tmp_path / "snkmt.db"  # not in the checkout: snkmt writes elsewhere if its path has quotes
    given = ["tokenizers", "--profile", "profiles/local", "--configfile", pretending.write_config(small)]
    given += ["--logger", "caravan", "snkmt", "--logger-snkmt-db", path]
    assert re.search(rf"{CLOCK} start train_tokenizer", pretending.snakemake(*given).stderr)
    with contextlib.closing(sqlite3.connect(path)) as database:
        rules = {name for (name,) in database.execute("SELECT name FROM rules")}
    assert {"list", "train_tokenizer"} <= rules


class FakeTerminal(io.StringIO):
    def isatty(self):
        return True


def record(event, text="", level=logging.INFO, **more):
    made = logging.LogRecord("snakemake", level, __file__, 1, text, (), None)
    made.__dict__ |= {"event": event, **more}
    return made


def started(model, *, local=False, jobid=1):
    wildcards = {"run": "base", "step": model.stem}
    of_job = {"rule_name": "pretrain", "wildcards": wildcards, "output": [str(model)], "shellcmd": "python"}
    return record(LogEvent.JOB_INFO, jobid=jobid, local=local, **of_job)


def terminal(stream):
    return plugin.Terminal(True, stream, plugin.JobLines(set(), True))


def write_steps(model, first, last, *, at=None, seconds=1.0):
    directory = model.parents[1] / "train/0123"
    directory.mkdir(parents=True, exist_ok=True)
    at = at or time.time()
    with open(directory / "metrics.jsonl", "a") as file:
        for step in range(first, last + 1):
            file.write(
                json.dumps({"step": step, "loss": 5.0 - step / 100, "time": at + (step - last) * seconds}) + "\n"
            )


def test_training_on_a_cluster_shows_step_loss_and_time_left_in_place(tmp_path, monkeypatch):
    model, stream = tmp_path / "runs/base/models/00000100.json", FakeTerminal()
    monkeypatch.setattr(plugin, "REFRESH_SECONDS", 0.02)
    handler = terminal(stream)
    handler.emit(started(model, local=True))
    assert handler._follower is None, "training on this machine shows its own line"
    handler.emit(started(model))
    time.sleep(0.2)
    assert "step" not in stream.getvalue(), "it waits in the queue"
    write_steps(model, 1, 20, at=time.time() + 20)
    wanted = "\r\x1b[2Kpretrain base 100: step 20/100, loss 4.800, 1:20 left"
    deadline = time.monotonic() + 10
    while not stream.getvalue().endswith(wanted):
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.02)
    handler.emit(record(LogEvent.JOB_FINISHED, job_id=1))
    handler.emit(record(LogEvent.PROGRESS, done=1, total=2))
    assert re.search(r"left\r\x1b\[2K\d\d:\d\d:\d\d done  pretrain base 100, \d+ s \(1 of 2\)\n", stream.getvalue())


def test_line_of_a_training_needs_steps_of_this_job(tmp_path):
    model = tmp_path / "runs/base/models/00000100.json"
    assert plugin.training_line(model, 0) is None
    write_steps(model, 1, 20, at=time.time() - 3600)
    assert plugin.training_line(model, time.time() - 1800) is None
    write_steps(model, 21, 21)
    assert plugin.training_line(model, time.time() - 1800) == "step 21/100, loss 4.790"
    cut = ['{"step": 22, "loss": null, "time": 4e9}', "[1]", '{"step": 22, "validation": {}, "time": 4e9}', '{"st']
    with open(model.parents[1] / "train/0123/metrics.jsonl", "a") as file:
        file.write("\n".join(cut))
    assert plugin.training_line(model, 3e9) == "step 22/100"
    model = tmp_path / "runs/other/models/00000100.json"
    write_steps(model, 99, 100)  # the manifest is written after the evaluation
    assert re.fullmatch(r"step 100/100, loss \S+, validation for \d+ s", plugin.training_line(model, 0))


def test_durations():
    durations = {-1: "0 s", 59.4: "59 s", 187: "3:07", 7387.2: "2:03:07"}
    assert {seconds: plugin.duration(seconds) for seconds in durations} == durations


def test_warnings_and_lines_of_executors_are_shown(tmp_path):
    stream = FakeTerminal()
    handler = terminal(stream)
    shown = [
        record(None, "Job 1 has been submitted with SLURM jobid 7"),
        record(None, "Select jobs to execute...", logging.WARNING),
        record(LogEvent.RESOURCES_INFO, "Provided cores: 1", logging.WARNING),
    ]
    hidden = [
        record(None, "Select jobs to execute..."),
        record(LogEvent.JOB_STARTED, "Execute 2 jobs..."),
        record(LogEvent.RESOURCES_INFO, "Provided cores: 2"),
    ]
    for one in [*shown, *hidden]:
        if handler.filter(one):
            handler.emit(one)
    assert stream.getvalue().replace(plugin.CLEAR, "").splitlines() == [one.msg for one in shown]


def test_a_long_line_of_an_error_is_cut_in_its_middle():
    stream = FakeTerminal()
    terminal(stream).emit(record(None, f"Command 'printf {'x' * 17_000}' failed\nthe reason", logging.ERROR))
    line, reason = stream.getvalue().replace(plugin.CLEAR, "").splitlines()[-2:]
    assert line.startswith("Command 'printf xxx") and line.endswith("xxx' failed") and len(line) < 1100
    assert " characters, in .snakemake/log] ... xxx" in line and reason.startswith("the reason")


def test_last_line_names_what_was_made(tmp_path):
    summary = tmp_path / "summary.txt"
    assert last_words.last_line(["all"], ["a.json"], str(summary), "card.html") == "all made: a.json"
    summary.write_text("")
    assert last_words.last_line(["all"], [], str(summary), "card.html").endswith(
        f"are in {summary}, the report is card.html"
    )
    assert last_words.last_line(["a.json"], ["a.json"], str(summary), "card.html") == "a.json made"


def test_a_closed_terminal_does_not_end_the_workflow(tmp_path, monkeypatch):
    stream = FakeTerminal()
    handler = terminal(stream)
    monkeypatch.setattr(handler, "handleError", lambda record: None)
    monkeypatch.setattr(stream, "write", lambda text: (_ for _ in ()).throw(OSError(5, "Input/output error")))
    handler.emit(record(None, "text"))
