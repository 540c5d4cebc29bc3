"""The parts that benchmarks share: peers that take turns, functions that run in a process or an environment of their
own, the time of commands, stages, a config's run that is trained with other keys, runs that a call that was cut off
need not repeat, and the file of results.

    python -m benchmarks.harness MODULE FUNCTION WORDS    # call a function of benchmarks.MODULE, see `command_of`

A turn is {name: figures} of all that were measured in it, ours and the peers'. A file of results has one turn per line,
after the command, date, commit, hardware and versions. The environment of a peer has none of our packages: at the top,
this module imports the standard library alone.
"""

import argparse
import contextlib
import importlib
import importlib.metadata
import json
import os
import platform
import re
import resource
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

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size")
"""The sizes of a Llama, in the names of LlamaConfig."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def environment(**variables):
    """Return the environment of a process that finds this checkout and this Python, with further variables."""
    path = os.pathsep.join(filter(None, [str(HOME), os.environ.get("PYTHONPATH")]))
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": programs, "PYTHONPATH": path} | variables


def command_of(module, function, *words, python=sys.executable):
    """Return a command that calls a function of benchmarks.MODULE and prints its result as JSON.

    The words are passed on as JSON: the function gets a path as text. `python`: of another environment.
    """
    return [str(python), "-m", "benchmarks.harness", module, function, json.dumps(words, default=str)]


def call(module, function, *words, python=sys.executable, variables=None, **options):
    """Return the result of a function that is called in a process of its own, see `command_of`."""
    command = command_of(module, function, *words, python=python)
    done = subprocess.run(
        command, env=environment(**variables or {}), stdout=subprocess.PIPE, text=True, check=True, **options
    )
    return json.loads(done.stdout.splitlines()[-1])


def versions(packages):
    """Return {package: version} of those that are installed."""
    found = {}
    for package in packages:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[package] = importlib.metadata.version(package)
    return found


def versions_of(python, packages):
    """Return `versions` of the environment of another Python, {} without that."""
    try:
        return call("harness", "versions", sorted(packages), python=python, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return {}


def installed(packages, python=sys.executable):
    """Return the names whose packages are installed, of {name: packages}; print a line for each other one."""
    there = versions_of(python, {package for of_name in packages.values() for package in of_name})
    for name, of_name in packages.items():
        if not there.keys() >= set(of_name):
            print(f"{name} is not installed: skipped")
    return [name for name, of_name in packages.items() if there.keys() >= set(of_name)]


def launched(ranks, command):
    """Return a command of this Python, `python -m ...`, on ranks of one thread; one rank needs no launcher."""
    return command if ranks == 1 else [str(HOME / "workflow/launch"), "--threads", "1", str(ranks), *command[1:]]


def stage(name, *words):
    """Return the command of a stage."""
    return [sys.executable, "-m", f"stages.{name}", *map(str, words)]


def run_stage(name, *words, **variables):
    """Run a stage, with further environment variables; what it prints is shown if it fails."""
    done = subprocess.run(
        stage(name, *words), env=environment(**variables), check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"{done.stdout}{done.stderr}stages.{name} ended with exit code {done.returncode}")


def make_corpus(directory, name, source, tokenizer):
    """Make the corpus of one source in one part by the stages, and a tokenizer; return the path of its manifest."""
    listed, package = directory / "list.json", directory / "tokenizer/manifest.json"
    part, corpus = directory / f"tokens/{name}/00000.json", directory / "tokens/manifest.json"
    run_stage("list", "--name", name, "--recipe", json.dumps(source), "--output", listed)
    recipe = json.dumps({"sample": {name: 1}} | tokenizer)
    run_stage("train_tokenizer", "--lists", listed, "--recipe", recipe, "--output", package)
    run_stage("tokenize", "--list", listed, "--tokenizer", package, "--part", 0, "--output", part)
    run_stage("index", "--tokenizer", package, "--parts", part, "--output", corpus)
    return corpus


def training_words(corpus, directory, recipe, operation=None, until=None):
    """Return the options of the stage `pretrain` that train in a directory: train/, log and milestone.json.

    `until`: the step of the milestone, the last one by default.
    """
    until = until or (recipe | (operation or {}))["steps"]
    words = ["--corpus", corpus, "--until", until, "--train-dir", directory / "train", "--log", directory / "log"]
    words += ["--output", directory / "milestone.json", "--recipe", json.dumps(recipe)]
    words += ["--operation", json.dumps(operation)] if operation else []
    return list(map(str, words))


def snakemake(directory, *words, config=None):
    """Return the command of the workflow in a directory. `config`: a file in place of the embedded default."""
    command = [sys.executable, "-m", "snakemake", "--snakefile", HOME / "workflow/Snakefile"]
    command += ["--configfile", config] if config else []
    return [str(word) for word in [*command, "--directory", directory, *words]]


def litgpt_config(model, vocab_size, length):
    """Return litgpt's Config of a Llama, given in the names of LlamaConfig."""
    from litgpt import Config

    return Config(
        name="peer",
        block_size=length,
        vocab_size=vocab_size,
        padded_vocab_size=vocab_size,
        n_layer=model["num_hidden_layers"],
        n_embd=model["hidden_size"],
        n_head=model["num_attention_heads"],
        n_query_groups=model["num_key_value_heads"],
        intermediate_size=model["intermediate_size"],
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
    )


MEASURED = """
import json, resource, subprocess, sys, time
begun = time.perf_counter()
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
seconds, used = time.perf_counter() - begun, resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([code, seconds, used.ru_utime + used.ru_stime, used.ru_maxrss * 1024]))
"""
"""A small process that starts what is measured: Linux counts the memory of a process' parent as its own peak."""


def timed(command, **variables):
    """Run a command without its output; return its seconds and CPU-seconds, and the peak memory of its largest process.

    Processes that it starts and waits for are counted.
    """
    command = [sys.executable, "-c", MEASURED, *map(str, command)]
    done = subprocess.run(command, env=environment(**variables), check=True, capture_output=True, text=True)
    code, *figures = json.loads(done.stdout)
    if code:
        raise SystemExit(f"{done.stderr}{' '.join(command[3:])} ended with exit code {code}")
    return dict(zip(("seconds", "cpu_seconds", "peak_bytes"), figures, strict=True))


def take_turns(commands, repeats, warm_up):
    """Let the processes of {name: command} take turns, in a rotating order, so that other load slows all equally.

    A process takes a turn per line of stdin and prints its figures as a line of JSON. Returns the turns after the first
    `warm_up`, and {name: its result}: the commands are those of
    `command_of`.
    """
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    running = {name: subprocess.Popen(command, env=environment(), **pipes) for name, command in commands.items()}
    names, turns = list(running), []
    for repeat in range(-warm_up, repeats):
        turn = {"load": os.getloadavg()[0]}
        for place in range(len(names)):
            name = names[(repeat + place) % len(names)]
            running[name].stdin.write("go\n")
            turn[name] = json.loads(running[name].stdout.readline())
        turns.append(turn)
    return turns[warm_up:], {name: json.loads(process.communicate()[0]) for name, process in running.items()}


def medians(turns):
    """Return the medians over the turns of their numbers, by their keys at any depth."""
    first = turns[0]
    if not isinstance(first, dict):
        return statistics.median(turns)
    return {
        key: medians([turn[key] for turn in turns])
        for key, value in first.items()
        if isinstance(value, dict | int | float)
    }


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


def cpu_seconds():
    """Return the CPU-seconds of this process and of the children that it waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


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
    head = {
        "command": PLACES.sub("", " ".join([f"python -m benchmarks.{benchmark}", *sys.argv[1:]])),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit(),
        "hardware": hardware(),
        "versions": {"python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in packages},
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


if __name__ == "__main__":
    called = getattr(importlib.import_module(f"benchmarks.{sys.argv[1]}"), sys.argv[2])
    print(json.dumps(called(*json.loads(sys.argv[3]))), flush=True)
