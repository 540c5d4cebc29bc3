"""The parts that benchmarks share: peers that take turns, the time of commands, a config's run that is trained with
other keys, runs that a call that was cut off need not repeat, and the file of results.

A turn is {name: figures} of all that were measured in it, ours and the peers'. A file of results has one turn per line,
after the command, date, commit, hardware and versions.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
RESULTS = HOME / "benchmarks/results"
CORPUS = "results/tokens/main/manifest.json"
"""The corpus of the demo."""

PLACES = re.compile(r" --(work|output|corpus|peers-python|environments|show)[ =]\S+")
"""Options that say where files lie on one machine, which changes no figure."""

WIDTH = 240
"""Characters of an object that is written on one line; a longer one has a line per key, a list a line per item."""


def installed(packages):
    """Return the names whose package is installed, of {name: package or None}; print a line for each other one."""
    names = []
    for name, package in packages.items():
        try:
            importlib.metadata.version(package or "numpy")
            names.append(name)
        except importlib.metadata.PackageNotFoundError:
            print(f"{name} is not installed: skipped")
    return names


def module(name, *words):
    """Return the command of `python -m benchmarks.NAME WORDS`."""
    return [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)]


def last_json(command, **options):
    """Run a command; return the JSON that is its last line of output."""
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, text=True, check=True, **options)
    return json.loads(done.stdout.splitlines()[-1])


MEASURED = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""
"""A small process that starts what is measured: Linux counts the memory of a process' parent as its own peak."""


def timed(command, environment=None, **options):
    """Run a command without its output; return its seconds and CPU-seconds, and the peak memory of its largest process.

    Processes that it starts and waits for are counted.
    """
    command = [sys.executable, "-c", MEASURED, *map(str, command)]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True, **options)
    code, *figures = json.loads(done.stdout)
    if code:
        raise subprocess.CalledProcessError(code, command[3:], stderr=done.stderr)
    return dict(zip(("seconds", "cpu_seconds", "peak_bytes"), figures, strict=True))


def take_turns(commands, repeats, warm_up):
    """Let the processes of {name: command} take turns, in a rotating order, so that other load slows all equally.

    A process takes a turn per line of stdin and prints its figures as a line of JSON. Returns the turns after the first
    `warm_up`, and {name: what it printed at the end of stdin}.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    running = {name: subprocess.Popen(command, **pipes) for name, command in commands.items()}
    names, turns = list(running), []
    for repeat in range(-warm_up, repeats):
        turn = {"load": os.getloadavg()[0]}
        for place in range(len(names)):
            name = names[(repeat + place) % len(names)]
            running[name].stdin.write("go\n")
            turn[name] = json.loads(running[name].stdout.readline())
        turns.append(turn)
    ends = {name: json.loads(process.communicate()[0] or "null") for name, process in running.items()}
    return turns[warm_up:], ends


def median(turns, name, figure):
    """Return the median of a figure over the turns."""
    return statistics.median(turn[name][figure] for turn in turns)


def ratio(turns, name, other, figure):
    """Return the median over the turns of a figure of one over that of another."""
    return statistics.median(turn[name][figure] / turn[other][figure] for turn in turns)


def speeds(turns, peer):
    """Return our tokens per second and per CPU-second over a peer's, for the same tokens in each turn."""
    of = {"tokens_per_second": "seconds", "tokens_per_cpu_second": "cpu_seconds"}
    return {name: ratio(turns, peer, "caravan", figure) for name, figure in of.items()}


def print_ratios(ratios):
    """Print our figures over each peer's, of {peer: {figure: ratio}}."""
    for peer, compared in ratios.items():
        print(f"caravan / {peer}: " + ", ".join(f"{name} {value:.2f}" for name, value in compared.items()))


def memory_mb(name):
    """Return a line of /proc/self/status in MiB: VmRSS, or VmHWM, its peak."""
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def hardware():
    """Return the processor with its widest vectors, the GPUs and the memory of this machine."""
    import torch

    names = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory_gb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    processor = names[0].partition(":")[2].strip() if names else platform.machine()
    facts = {"processor": processor, "cores": os.cpu_count(), "memory_gb": round(memory_gb, 1)}
    facts["vectors"] = torch.backends.cpu.get_cpu_capability()
    if torch.cuda.is_available():
        facts |= {"gpu": torch.cuda.get_device_name(), "gpus": torch.cuda.device_count(), "cuda": torch.version.cuda}
    return facts


def commit(directory=HOME):
    """Return the abbreviated commit of a checkout, "+" if files differ from it; None outside a repository."""
    command = ["git", "-C", directory, "describe", "--always", "--exclude=*", "--dirty=+"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.stdout.strip() or None


def parser_of(description, name):
    """Return a parser of a benchmark's options with --output."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS / f"{name}.json")
    return parser


def training_parser_of(description, name):
    """Return a parser with --output and the options of a benchmark that trains the run of a config, see `recipe_of`."""
    parser = parser_of(description, name)
    parser.add_argument("--corpus", type=Path, default=Path(CORPUS), help=f"manifest (default: {CORPUS})")
    parser.add_argument("--config", type=Path, default=HOME / "config/config.yaml", help="default: the demo's")
    parser.add_argument("--run", default="base", help="the run of the config")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--validation-tokens", type=int, default=1 << 15, help="per source, at most")
    return parser


def run_of(arguments):
    """Return the run of the config, its batch a number by its own steps."""
    import yaml

    from stages.lib.training.settings.recipe import TrainRecipe

    run = yaml.safe_load(arguments.config.read_text(encoding="utf-8"))["runs"][arguments.run]
    return run | {"pretrain": TrainRecipe.written_out(run["pretrain"], f"runs.{arguments.run}.pretrain")}


def recipe_of(arguments, seed, steps, every, validation_tokens):
    """Return the recipe of a training of the config's run for other steps, validated after each `every` of them."""
    run = run_of(arguments)
    recipe = {key: value for key, value in run["pretrain"].items() if key != "milestones"}
    schedule = recipe.get("schedule", {})
    return recipe | {
        "model": run["model"],
        "steps": steps,
        "seed": seed,
        "schedule": schedule | {"warmup_steps": min(schedule.get("warmup_steps", 0), steps - 1)},
        "checkpoint": {"every": steps, "keep": 1, "asynchronous": False},
        "validation": {"every": every, "tokens": validation_tokens},
    }


class EndedRuns:
    """The runs of a benchmark that ended, also in earlier calls that were cut off: lines of a file beside --output."""

    def __init__(self, output):
        self.output, self.path = output, output.with_suffix(".partial.jsonl")
        text = self.path.read_text(encoding="utf-8") if self.path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # a kill may leave a part of a line
        if whole != text:
            self.path.write_text(whole, encoding="utf-8")
        self.figures = dict(map(json.loads, whole.splitlines()))

    def figures_of(self, settings, run, *words):
        """Return the figures of a run, by all settings on which they depend; call `run` with words if it did not end.

        Threads may call it at the same time for different settings.
        """
        key = json.dumps(settings)
        if key not in self.figures:
            self.figures[key] = run(*words)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "a", encoding="utf-8") as file:
                file.write(json.dumps([key, self.figures[key]]) + "\n")
        return self.figures[key]

    def write(self, benchmark, packages, figures):
        """Write the file of results, see `write`, and remove the file of the ended runs."""
        write(self.output, benchmark, packages, figures)
        self.path.unlink(missing_ok=True)


def write(path, benchmark, packages, figures, quiet=False):
    """Write the figures of `python -m benchmarks.BENCHMARK` with date, hardware and versions, and print the path."""
    versions = {package: importlib.metadata.version(package) for package in packages}
    head = {
        "command": PLACES.sub("", " ".join([f"python -m benchmarks.{benchmark}", *sys.argv[1:]])),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "hardware": hardware(),
        "versions": {"python": platform.python_version()} | versions,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(lines_of(head | figures) + "\n", encoding="utf-8")
    if not quiet:
        print(f"written to {path}")


def lines_of(value, indent=""):
    """Return JSON with a line per turn and per short object; numbers have seven digits."""
    text = json.dumps(_rounded(value))
    if len(text) + len(indent) <= WIDTH or not isinstance(value, dict | list):
        return text
    deeper = f"{indent} "
    if isinstance(value, list):
        items = [json.dumps(_rounded(item)) for item in value]
    else:
        items = [f"{json.dumps(str(key))}: {lines_of(item, deeper)}" for key, item in value.items()]
    begin, end = "[]" if isinstance(value, list) else "{}"
    return f"{begin}\n{deeper}" + f",\n{deeper}".join(items) + f"\n{indent}{end}"


def _rounded(value):
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return float(f"{value:.7g}") if isinstance(value, float) else value
