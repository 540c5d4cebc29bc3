"""The command line of stages: an output is checked before the work; a full disk, memory or log is one sentence."""

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from stages import (
    convert,
    copy_candidates,
    evaluate,
    find_candidates,
    find_contamination,
    find_duplicates,
    find_overlaps,
    finetune,
    hash_documents,
    index,
    list_items,
    pretrain,
    select_best,
    sketch,
    summarize,
    tokenize,
    train_classifier,
    train_tokenizer,
    verify_duplicates,
)
from stages import list as listing
from stages.lib import log, stage
from tests.helpers.training import HOME

TRAIN = '{"seq_len": 16, "global_batch_size": 2, "steps": 2, "optimizer": {"learning_rate": 1e-3}}'
OPTIONS = {
    listing: ["--name", "a", "--recipe", '{"kind": "python-code"}'],
    train_classifier: ["--lists", "x", "--recipe", '{"good": ["a"], "bad": ["b"]}'],
    train_tokenizer: ["--recipe", '{"vocab_size": 300, "sample": {"a": 1}}'],
    hash_documents: ["--list", "x", "--part", "0", "--parts", "1"],
    find_duplicates: ["--hashes", "x"],
    sketch: ["--list", "x", "--part", "0", "--parts", "1"],
    find_candidates: ["--sketches", "x"],
    copy_candidates: ["--candidates", "x", "--list", "x", "--part", "0", "--parts", "1"],
    verify_duplicates: ["--candidates", "x", "--copies", "x"],
    tokenize: ["--list", "x", "--tokenizer", "x", "--part", "0"],
    index: ["--tokenizer", "x", "--parts", "x"],
    pretrain: ["--corpus", "x", "--until", "2", "--train-dir", "x", "--recipe"]
    + [TRAIN[:-1] + ', "weights": {"a": 1}, "model": {"num_hidden_layers": 1, "hidden_size": 8, '
       '"num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 16}}'],
    finetune: ["--corpus", "x", "--tokenizer", "x", "--sources", "x", "--initial", "x", "--until", "2"]
    + ["--train-dir", "x", "--recipe", TRAIN[:-1] + ', "weights": {"a": 1}}'],
    convert: ["--model", "x", "--corpus", "x", "--tokenizer", "x"],
    evaluate: ["--export", "x", "--corpus", "x", "--recipe", '{"tasks": ["next_line"]}'],
    list_items: ["--suite", "x", "--recipe", '{"tasks": ["next_line"]}'],
    find_overlaps: ["--items", "x", "--part", "x", "--tokenizer", "x"],
    find_contamination: ["--corpus", "x", "--items", "x", "--overlaps", "x"],
    select_best: ["--models", "x", "--evaluations", "x", "--recipe", '{"metric": "acc", "mode": "max"}'],
    summarize: ["--scores", "x", "--figures", "x"],
}  # fmt: skip


@pytest.mark.parametrize("module", OPTIONS, ids=lambda module: module.__name__)
def test_an_output_that_is_no_file_is_refused_before_the_work(module, tmp_path, capsys):
    pipe, file = tmp_path / "pipe.json", tmp_path / "file"
    os.mkfifo(pipe)
    file.touch()
    for output, said in (
        (pipe, "is a device, a pipe or a socket, expected a new name or a regular file"),
        (tmp_path, "is a directory, expected a new name or a regular file"),
        (file / "a.json", "must be in a directory that can be written: Not a directory"),
    ):
        assert module.main([*OPTIONS[module], "--output", str(output)]) == 2
        name = module.__name__.rpartition(".")[2]
        assert capsys.readouterr().err == f"{name}: --output {output} {said}\n"
    assert pipe.is_fifo()
    assert sorted(os.listdir(tmp_path)) == ["file", "pipe.json"]


def ended(capsys, run, *argv):
    """Run a stage that calls `run`; return (exit code, what it wrote to the terminal)."""
    code = stage.execute(stage.parser("stages.made", ""), lambda _: run(), argv)
    return code, capsys.readouterr().err


def raising(error, cause=None):
    def run():
        try:
            if cause is not None:
                raise cause
        except Exception:
            raise error  # noqa: B904
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "cause", "said"),
    [
        (OSError(errno.ENOSPC, "No space"), None, "a file (TMPDIR is {tmp}) cannot be read or written: No space"),
        (PermissionError(errno.EACCES, "Denied", "x/y"), None, "x/y cannot be read or written: Denied"),
        (PermissionError(errno.EACCES, "Denied", "x\ny"), None, "x y cannot be read or written: Denied"),
        (OSError(errno.ENAMETOOLONG, "Long", "x" * 400), None, "x" * 300 + " cannot be read or written: Long"),
        (RuntimeError("its own"), OSError(errno.ENOSPC, "No space", "x/y"), "x/y cannot be read or written: No space"),
        (MemoryError(), None, "out of memory: a request failed; the process used up to "),
        (MemoryError("Unable to allocate 3.00 TiB for it"), None, "out of memory: a request of 3.00 TiB failed; "),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), None, "out of memory: a request failed; "),
        (ImportError("a.so: failed to map segment from shared object"), None, "out of memory: a request failed; "),
        (
            RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000 bytes."),
            None,
            "out of memory: a request of 4.0 GB failed; the process used up to ",
        ),
        (RuntimeError("its own"), MemoryError(), "out of memory: a request failed; "),
    ],
)  # fmt: skip
def test_a_full_disk_or_memory_is_one_sentence(capsys, monkeypatch, tmp_path, error, cause, said):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    code, text = ended(capsys, raising(error, cause))
    assert (code, text.count("\n")) == (2, 1)
    assert text.startswith("made: " + said.format(tmp=tmp_path))


@pytest.mark.parametrize("cause", [None, FileNotFoundError(errno.ENOENT, "No such file or directory", "x")])
def test_a_bug_stays_one_also_after_a_file_was_missing(capsys, cause):
    code, text = ended(capsys, raising(KeyError("a"), cause))
    assert code == 1
    assert text.splitlines()[-1] == "made: internal error: KeyError: 'a'"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
@pytest.mark.parametrize("level", ["info", "warning"])
def test_a_full_log_is_one_sentence(capsys, level):
    code, text = ended(capsys, lambda: getattr(log.logger, level)("a line"), "--log", "/dev/full")
    lines = text.splitlines()
    assert (code, lines[-1]) == (2, "made: --log /dev/full cannot be written: No space left on device")
    assert lines[:-1] == (["a line"] if level == "warning" else [])
    assert not Path("/dev/full").is_file()


def test_text_that_utf8_cannot_hold_is_logged(capsys, tmp_path):
    code, text = ended(capsys, lambda: log.logger.info("a \ud800 b"), "--log", str(tmp_path / "log"))
    assert (code, text) == (0, "")
    assert (tmp_path / "log").read_text().endswith("a \\ud800 b\n")


LEAVE = "import atexit; from stages.lib import stage; atexit.register(print, 'end'); print('text'); stage.leave({code})"


def left(stdout, code=0):
    """Run a process that prints, and ends with `code`."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command, options = [sys.executable, "-c", LEAVE.format(code=code)], {"cwd": HOME, "env": environment, "text": True}
    return subprocess.run(command, **options, stdout=stdout, stderr=subprocess.PIPE, check=False)


@pytest.mark.parametrize("code", [0, 2])
def test_the_end_of_a_process_writes_all_and_keeps_the_code(code):
    done = left(subprocess.PIPE, code)
    assert (done.returncode, done.stdout, done.stderr) == (code, "text\nend\n", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_the_end_of_a_process_whose_output_cannot_be_written_is_one_line():
    with open("/dev/full", "w") as full:
        done = left(full)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert line.endswith("the standard output cannot be written: No space left on device")


def test_the_end_of_a_process_whose_reader_has_read_enough_is_silent():
    reader, writer = os.pipe()
    os.close(reader)
    done = left(writer)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_error_of_an_extension_that_is_no_exception_is_an_internal_error_with_one_line(tmp_path, capsys):
    class Panic(BaseException):
        """As Rust's PanicException."""

    def run(arguments):
        raise Panic("a cut outside of the text")

    assert stage.execute(stage.parser("tools.some", "A tool."), run, []) == stage.BUG
    assert capsys.readouterr().err.splitlines()[-1] == "some: internal error: Panic: a cut outside of the text"
