"""The command `caravan`, which `pip install -e .` installs: the workflow, tools and stages, from any directory.

    caravan check my.yaml                           python -m tools.check my.yaml
    caravan run --profile local scores my.yaml      snakemake with this checkout's Snakefile and profile
    caravan status                                  python -m tools.status
    caravan convert --help                          python -m stages.convert --help

run takes Snakemake's own words too. Words that end in .yaml or .yml are config files, and KEY=VALUE with dots in KEY
replaces a value: caravan run --profile local -n all my.yaml runs.base.pretrain.steps=240. Without --profile it is the
profile local.
"""

import os
import sys
from collections.abc import Sequence

from stages.lib import log, stage
from stages.lib.errors import UserError
from stages.registry import STAGES
from tools.check.dry_run import HOME, SNAKEFILE, config_options, profile_of

RUN = "run"
OPTIONS_OF_FILES = ("--configfile", "--configfiles", "--config", "-C")
"""Options of Snakemake whose words are left to it."""


def known() -> dict[str, str]:
    """Return {command: module} of all tools and stages; a tool comes before a stage of its name."""
    modules = {stage.module.removeprefix("stages."): stage.module for stage in STAGES.values()}
    modules |= {path.stem: f"tools.{path.stem}" for path in (HOME / "tools").glob("[!_]*.py")}
    modules |= {path.parent.name: f"tools.{path.parent.name}" for path in (HOME / "tools").glob("*/__main__.py")}
    del modules["caravan"]
    return modules


def command_of(words: Sequence[str]) -> list[str]:
    """Return the command line that `caravan WORDS` stands for. Raises UserError for a command that does not exist."""
    if not SNAKEFILE.is_file():
        raise UserError(f"caravan must be installed from its checkout by `pip install -e .`: {SNAKEFILE} is missing")
    name, *rest = words
    if name == RUN:
        return [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), *snakemake_words(rest)]
    modules = known()
    if name not in modules:
        raise UserError(f"the command must be one of {', '.join([RUN, *sorted(modules)])}, got {name}")
    return [sys.executable, "-m", modules[name], *rest]


def snakemake_words(words: Sequence[str]) -> list[str]:
    """Return Snakemake's words for those of `caravan run`. Raises UserError for a file or profile that is none."""

    def is_of_config(word: str) -> bool:
        key, equals, _ = word.partition("=")
        return "." in key if equals else word.endswith((".yaml", ".yml"))

    config_words, left, profile = [], [], "local"
    of_files, is_profile = False, False
    for word in words:
        if is_profile:
            profile, is_profile = word, False
        elif word == "--profile":
            is_profile = True
        elif word.startswith("--profile="):
            profile = word.partition("=")[2]
        elif not of_files and not word.startswith("-") and is_of_config(word):
            config_words.append(word)
        else:
            of_files = word in OPTIONS_OF_FILES or (of_files and not word.startswith("-"))
            left.append(word)
    if is_profile:
        raise UserError("--profile must be followed by a directory, or the name of one in profiles/")
    # options of several words come last, or they would take the targets
    return ["--profile", profile_of(profile), *left, *config_options(config_words)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line: this process becomes the command's."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help"):
        print(f"{__doc__}\nCommands: {', '.join([RUN, *sorted(known())])}")
        return stage.DONE
    try:
        command = command_of(words)
    except UserError as error:
        log.to(None)
        log.logger.error("caravan: %s", error)
        return stage.USER_MISTAKE
    paths = [str(HOME), *filter(None, [os.environ.get("PYTHONPATH")])]
    # a folder `tools` or `stages` in the working directory is another
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONSAFEPATH": "1"}
    os.execve(command[0], command, environment)


if __name__ == "__main__":
    stage.leave(main())
