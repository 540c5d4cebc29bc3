"""The command line that all stages and tools share: options, log, exit codes.

Exit codes: 0 done, 2 the user's mistake (one line), 75 out of time (start it again), 130 Ctrl-C, 1 an internal error
(the log has a traceback).
"""

import argparse
import atexit
import contextlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stages.lib import files, log, mpi, recipe, recipe_schema, space
from stages.lib.errors import Preempted, RankLocalError, UserError, is_fault

DONE, BUG, USER_MISTAKE, OUT_OF_TIME, INTERRUPTED = 0, 1, 2, 75, 130
LINGER_SECONDS = 2.0
"""Time in which the first rank of an mpiexec ends before the others."""


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake as the stages do: in one line, with exit code 2."""

    def error(self, message: str) -> NoReturn:
        """Print the mistake in one line and exit with 2."""
        log.to(None)  # --log is not parsed yet
        sys.exit(_end(USER_MISTAKE, f"{self.prog}: {message} (see --help)"))


def parser(name: str, doc: str | None, recipe_type: type | None = None) -> Parser:
    """Return the parser of a stage or tool, with the common options. `doc`: the docstring of the module `name`."""
    made = Parser(
        prog=f"python -m {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_recipe_help(recipe_type) if recipe_type else None,
        allow_abbrev=False,
    )
    made.set_defaults(stage_name=name.rpartition(".")[2], recipe_type=recipe_type)
    if recipe_type:
        made.add_argument("--recipe", default="{}", metavar="JSON|FILE", help="the recipe; keys below")
        made.add_argument("--schema", action=_PrintSchema, recipe_type=recipe_type)
    made.add_argument("--log", type=Path, metavar="FILE", help="file for log lines (default: the terminal)")
    made.add_argument("--code", metavar="HEX", help="fingerprint of the stage's code, kept in the manifest's record")
    return made


class _PrintSchema(argparse.Action):
    def __init__(self, option_strings: Sequence[str], dest: str, recipe_type: type) -> None:
        super().__init__(option_strings, dest, nargs=0, help="print the JSON schema of the recipe and exit")
        self.recipe_type = recipe_type

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print(json.dumps(recipe_schema.json_schema(self.recipe_type), indent=2))
        parser.exit()


def _recipe_help(recipe_type: type) -> str:
    lines = ["recipe keys:"]

    def walk(schema: dict[str, Any], prefix: str) -> None:
        for name, field in schema["properties"].items():
            if "properties" in field:
                walk(field, f"{prefix}{name}.")
                continue
            default = (
                "required" if name in schema.get("required", ()) else f"default {json.dumps(field.get('default'))}"
            )
            lines.append(f"  {prefix}{name} ({field['x-kind']}, {default}): {field['description']}")

    walk(recipe_schema.json_schema(recipe_type), "")
    return "\n".join(lines)


def execute(
    made: Parser,
    run: Callable[..., None],
    argv: Sequence[str] | None = None,
    recipe_base: Callable[[argparse.Namespace], dict[str, Any]] | None = None,
) -> int:
    """Parse `argv`, call `run(arguments, recipe)` (`run(arguments)` without a recipe type); return the exit code.

    `recipe_base`: returns recipe keys that other options give; `--recipe` overrides them.
    """
    mpi.adopt_ranks()
    arguments = made.parse_args(argv)
    try:
        try:
            log.to(arguments.log)
        except OSError as error:
            raise UserError(f"--log {arguments.log} cannot be written: {error.strerror}") from None
        given = []
        if arguments.recipe_type is not None:
            texts = [arguments.recipe, getattr(arguments, "operation", "{}")]
            base = recipe_base(arguments) if recipe_base else {}
            given.append(recipe.load_texts(arguments.recipe_type, texts, arguments.stage_name, base))
        if hasattr(arguments, "output"):  # before the work, which may take weeks
            files.check_output(arguments.output, "--output ")
        run(arguments, *given)
        return DONE
    except RankLocalError as error:
        return _end(USER_MISTAKE, f"{arguments.stage_name}: {error}", alone=True)
    except UserError as error:
        return _end(USER_MISTAKE, f"{arguments.stage_name}: {error}", agreed=error.on_all_ranks)
    except Preempted as error:
        return _end(OUT_OF_TIME, f"{arguments.stage_name}: {error}", agreed=error.on_all_ranks)
    except KeyboardInterrupt:
        return _end(INTERRUPTED, f"{arguments.stage_name}: stopped by Ctrl-C", alone=True)
    except BrokenPipeError as error:
        if hasattr(arguments, "output"):  # a stage with an output: not the reader of a listing
            return _bug(arguments, error)
        # the reader closed the pipe: discard the buffer, or Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except BaseException as error:
        return _unexpected(arguments, error)


def _reason_of_machine(error: BaseException | None) -> str | None:
    """Return a sentence if an error, or one that it follows, is of a file system or of memory; None for a bug.

    Libraries raise errors of their own for a full disk: the system's is among those that they follow.
    """
    of_file_system: tuple[int, ...] = files.OF_FILE_SYSTEM
    while error is not None:
        if out_of_memory := space.out_of_memory(error):
            return out_of_memory
        if isinstance(error, OSError) and error.errno in of_file_system:
            name = error.filename or f"a file (TMPDIR is {os.environ.get('TMPDIR', '/tmp')})"
            return f"{name!s:.300} cannot be read or written: {error.strerror}"
        of_file_system = files.FULL  # a missing file may have been expected
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def leave(code: int) -> NoReturn:
    """Exit the process without Python's teardown, which takes 0.3 s of CPU time with torch, and 0.7 s with lm-eval.

    With gloo, 2 of 25 runs aborted in it: a finished training would then count as failed. What libraries do at the end
    (atexit, as logging does) is left out in ranks alone, where it could wait for another rank.
    """
    if "RANK" in os.environ:
        logging.shutdown()
    else:
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        pass  # its reader has read enough
    except OSError as error:
        code = code or _end(USER_MISTAKE, f"the standard output cannot be written: {error.strerror}", alone=True)
    sys.stderr.flush()
    os._exit(code)


def out_of_time(name: str, message: str) -> int:
    """Print, from any thread, why stage `name` stops and must be restarted; return the exit code of the process.

    Under `workflow/launch` that is 0, for ranks that all end by themselves.
    """
    return _end(OUT_OF_TIME, f"{name}: {message}")


def _unexpected(arguments: argparse.Namespace, error: BaseException) -> int:
    """Return the exit code of an error that no stage raises by itself: of the machine, or of a bug."""
    if not is_fault(error):
        raise error
    if reason := _reason_of_machine(error):
        if arguments.log is not None:  # the cause may be ours, and the terminal has one line
            _log_traceback()
        return _end(USER_MISTAKE, f"{arguments.stage_name}: {reason}", alone=True)
    return _bug(arguments, error)


def _bug(arguments: argparse.Namespace, error: BaseException) -> int:
    _log_traceback()
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return _end(BUG, f"{arguments.stage_name}: internal error: {reason}", alone=True)


def _log_traceback() -> None:
    with contextlib.suppress(UserError):  # a full --log
        for line in traceback.format_exc().splitlines():
            log.logger.info("%s", line)


def _end(code: int, message: str, alone: bool = False, agreed: bool = False) -> int:
    """Print why the stage stopped, as its last line, and return the exit code of the process.

    torchrun turns every exit code but 0 into 1, under a page of its own. So under `workflow/launch` the first rank
    writes the code to a file, which launch reads, and ranks that stop together exit with 0. A rank that stops `alone`
    keeps its code, by which torchrun ends the others.
    """
    message = " ".join(message.splitlines())  # a path may have a line end
    if mpi.is_started():
        return _end_under_mpiexec(code, message, alone, agreed)
    path = os.environ.get("CARAVAN_EXIT_FILE")
    if path is None or "RANK" not in os.environ:
        with contextlib.suppress(UserError):  # a full --log; the terminal has the line
            log.logger.error("%s", message)
        return code
    with contextlib.suppress(FileExistsError, UserError):
        with open(path, "x", encoding="ascii") as file:
            file.write(str(code))
        log.logger.error("%s", message)
    return code if alone else DONE


def _end_under_mpiexec(code: int, message: str, alone: bool, agreed: bool) -> int:
    """Print why a rank of mpiexec stopped, and return its exit code, which mpiexec passes on.

    mpiexec may kill the other ranks at the first code but 0. So the first rank prints what all ranks `agreed` on, and
    the others give it time; they print what they cannot know to be the same.
    """
    first = os.environ["RANK"] == "0"
    if not alone and not first:
        time.sleep(LINGER_SECONDS)
    if first or not agreed:
        with contextlib.suppress(UserError):  # a full --log; the terminal has the line
            log.logger.error("%s", message)
    return code
