"""The command line that all stages share: options, log, exit codes.

Exit codes: 0 done, 2 the user's mistake (one line), 75 out of time (start it again), 130 Ctrl-C, 1 a bug (the log has a
traceback).
"""

import argparse
import contextlib
import json
import logging
import os
import sys
import traceback
from pathlib import Path

from stages.lib import log, recipe
from stages.lib.errors import Preempted, RankLocalError, UserError

DONE, BUG, USER_MISTAKE, OUT_OF_TIME, INTERRUPTED = 0, 1, 2, 75, 130


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes end like every other mistake of the user: in one line."""

    def error(self, message):
        """Say the mistake in one line and exit with 2."""
        log.to(None)  # there are no options yet that would say where
        sys.exit(_end(USER_MISTAKE, f"{self.prog}: {message} (see --help)"))


def parser(name, doc, recipe_type=None):
    """The parser of a stage or a tool, with the options that all have. `doc`: the docstring of the module `name`."""
    made = Parser(
        prog=f"python -m {name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_recipe_help(recipe_type) if recipe_type else None,
        allow_abbrev=False,
    )
    made.set_defaults(stage_name=name.rpartition(".")[2], recipe_type=recipe_type)
    if recipe_type:
        made.add_argument("--recipe", default="{}", metavar="JSON|FILE", help="what to do; keys below")
        made.add_argument("--schema", action=_PrintSchema, recipe_type=recipe_type)
    made.add_argument("--log", type=Path, metavar="FILE", help="where log lines go (default: the terminal)")
    made.add_argument("--code", metavar="HEX", help="fingerprint of the stage's code, kept in the manifest's record")
    return made


class _PrintSchema(argparse.Action):
    def __init__(self, option_strings, dest, recipe_type):
        super().__init__(option_strings, dest, nargs=0, help="print the JSON schema of the recipe and exit")
        self.recipe_type = recipe_type

    def __call__(self, parser, *_):
        print(json.dumps(recipe.json_schema(self.recipe_type), indent=2))
        parser.exit()


def _recipe_help(recipe_type):
    lines = ["recipe keys:"]

    def walk(schema, prefix):
        for name, field in schema["properties"].items():
            if "properties" in field:
                walk(field, f"{prefix}{name}.")
                continue
            default = (
                "required" if name in schema.get("required", ()) else f"default {json.dumps(field.get('default'))}"
            )
            lines.append(f"  {prefix}{name} ({field['x-kind']}, {default}): {field['description']}")

    walk(recipe.json_schema(recipe_type), "")
    return "\n".join(lines)


def execute(made, run, argv=None):
    """Parse `argv`, call `run(arguments, recipe)` (`run(arguments)` without a recipe type); returns an exit code."""
    arguments = made.parse_args(argv)
    try:
        try:
            log.to(arguments.log)
        except OSError as error:
            raise UserError(f"--log {arguments.log} cannot be written: {error.strerror}") from None
        if arguments.recipe_type is None:
            run(arguments)
        else:
            texts = [arguments.recipe, getattr(arguments, "operation", "{}")]
            run(arguments, recipe.load_texts(arguments.recipe_type, texts, arguments.stage_name))
        return DONE
    except RankLocalError as error:
        return _end(USER_MISTAKE, f"{arguments.stage_name}: {error}", alone=True)
    except UserError as error:
        return _end(USER_MISTAKE, f"{arguments.stage_name}: {error}")
    except Preempted as error:
        return _end(OUT_OF_TIME, f"{arguments.stage_name}: {error}")
    except KeyboardInterrupt:
        return _end(INTERRUPTED, f"{arguments.stage_name}: stopped by Ctrl-C", alone=True)
    except BrokenPipeError as error:
        if hasattr(arguments, "output"):  # not the reader of a listing: a pipe of the stage's own
            return _bug(arguments, error)
        # the reader left: what is still buffered goes nowhere, or Python would complain at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except Exception as error:
        return _bug(arguments, error)


def leave(code):
    """End the process of a rank with an exit code, without Python's teardown: with gloo, 2 of 25 runs aborted in it.

    A finished training would then count as failed. Outside torchrun the process ends as always.
    """
    if "RANK" not in os.environ:
        sys.exit(code)
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def out_of_time(name, message):
    """Say, from any thread, why stage `name` ends and is to be started again; returns the code to end the process with.

    Below `workflow/launch` that is 0, for ranks that all end by themselves.
    """
    return _end(OUT_OF_TIME, f"{name}: {message}")


def _bug(arguments, error):
    for line in traceback.format_exc().splitlines():
        log.logger.info("%s", line)
    reason = f"{type(error).__name__}: {error}".partition("\n")[0]
    return _end(BUG, f"{arguments.stage_name}: stopped by a bug or a fault: {reason}", alone=True)


def _end(code, message, alone=False):
    """Say why the stage stopped, as its last line, and hand the exit code to who started it.

    torchrun turns every exit code but 0 into 1, under a page of its own. So below `workflow/launch` the first rank
    leaves the code in a file, and the ranks that stop by agreement exit with 0; launch reads the file. One that stops
    `alone` keeps its code, by which torchrun ends the others.
    """
    path = os.environ.get("CARAVAN_EXIT_FILE")
    if path is None or "RANK" not in os.environ:
        log.logger.error("%s", message)
        return code
    with contextlib.suppress(FileExistsError):
        with open(path, "x", encoding="ascii") as file:
            file.write(str(code))
        log.logger.error("%s", message)
    return code if alone else DONE
