"""Bits per byte per CPU-second: the same text learned by ours, litgpt, nanochat and transformers.

    make demo && python -m benchmarks.learning --peers-python ENV/bin/python
    python -m benchmarks.learning --systems caravan --cpu-seconds 10 --seeds 0   # a smoke test: ours alone
    python -m benchmarks.learning --draw     # docs/images/learning.svg, from the results

All systems train for the same CPU-seconds on the same tokens. The rules:

- Text: the corpus of the demo and its tokenizer. Peers get our samples, in our order of the seed, as a plain array
  of L + 1 tokens each (transformers shuffles them, and computes L + 1 positions). Making it is not counted.
- Score: the windows of the validation split of each source that the stage's `validation` has, and its numbers of bytes;
  the mean over the sources. Each peer's own model computes the logits.
- Budget: user and system seconds of the process and the children that it waited for, from the first step. Imports,
  building the model, validation and our checkpoints do not count. One thread, float32, without torch.compile for all.
  A peer's own logging counts, and so do our metrics and the reading of our shards.
- Steps: a short training beforehand gives the CPU-seconds per step, and the budget the steps of the schedule. What was
  really used is recorded; where it is more, the loss at the budget is that of the curve.
- Tokens per step: ours for all.
- caravan: the stage `pretrain` with model and recipe of the run `base` in config/config.yaml.
- litgpt: `litgpt.pretrain` itself with its defaults, on a Llama of our sizes. Its warm-up of 2,000 steps is longer
  than such a training, which therefore ends at the peak of its learning rate.
- transformers: `Trainer` with its defaults, on a `LlamaForCausalLM` of our sizes.
- nanochat: the GPT and optimizer of --nanochat, a checkout of https://github.com/karpathy/nanochat (its package on PyPI
  has the tokenizer alone), with the options and schedules of its scripts/base_train.py, which scale the learning rates
  with the batch. Width, depth and vocabulary are ours; the untied head and the value embeddings are parameters more.
- The default learning rates and warm-up are for large models: the peers also train with each of two higher rates (of
  nanochat that of the matrices, the others in proportion) and our number of warm-up steps. The best mean over the seeds
  is a row of its own, "best of".

The peers want an environment of their own, with the torch of this one. litgpt pins an older transformers than the one
that is compared, so there are two commands:

    python -m venv ENV && ENV/bin/pip install torch==VERSION accelerate litgpt==0.5.13
    ENV/bin/pip install transformers==5.23.0

A peer that is not installed is left out. A call that was cut off resumes with the training that it did not end.
"""

import contextlib
import dataclasses
import inspect
import itertools
import json
import math
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import harness
from benchmarks.harness import HOME

IMAGE = HOME / "docs/images/learning.svg"
SYSTEMS = {
    "caravan": "it is part of this checkout",
    "litgpt": "pip install litgpt==0.5.13 in the environment of --peers-python",
    "nanochat": "name a checkout with --nanochat",
    "transformers": "pip install transformers==5.23.0 accelerate in the environment of --peers-python",
}
"""{system: how to get it}"""

PACKAGES = {"litgpt": ("litgpt",), "transformers": ("transformers", "accelerate")}
"""{system: the packages that the environment of --peers-python must have}"""

TUNED = {"litgpt": (2e-3, 4e-3), "nanochat": (8e-3, 1.6e-2), "transformers": (2e-3, 4e-3)}
"""{system whose defaults are for large models: its further learning rates}"""

PACE_STEPS, PACE_EVERY = 40, 10
"""Steps of the training that measures the CPU-seconds per step, and how many of them do not count."""


class Meter:
    """The CPU-seconds that count, and the curve: {"step", "cpu_seconds", "loss_bits_per_byte"} at each validation."""

    def __init__(self, job):
        self.job, self.used, self.since, self.curve = job, 0.0, None, []

    def start(self):
        """Count from now on."""
        self.since = harness.cpu_seconds()

    def stop(self):
        """Count no more."""
        if self.since is not None:
            self.used, self.since = self.used + harness.cpu_seconds() - self.since, None

    @contextlib.contextmanager
    def paused(self):
        """Do not count what happens inside."""
        self.stop()
        yield
        self.start()

    def is_due(self, step):
        """Return True if the model is to be scored after a step."""
        return step % self.job["every"] == 0 or step == self.job["steps"]

    def add(self, step, by_source):
        """Append a point of the curve."""
        point = {"step": step, "cpu_seconds": self.used, "loss_bits_per_byte": statistics.mean(by_source.values())}
        self.curve.append(point | {"by_source": by_source})


class Data:
    """The arrays of a seed: samples [N, L + 1] of training, and the validation's windows with their bytes."""

    def __init__(self, job):
        import numpy as np

        arrays = np.load(job["data"])
        self.samples, self.limit = arrays["samples"], job["validation_rows"]
        self.sources = {str(name): float(size) for name, size in zip(arrays["sources"], arrays["bytes"], strict=True)}
        self.windows = {
            name: (arrays[f"{name}.inputs"][: self.limit], arrays[f"{name}.targets"][: self.limit])
            for name in self.sources
        }

    def rows(self, first, count):
        """Return samples as a tensor of int64; after the last one they begin again."""
        import torch

        chosen = [number % len(self.samples) for number in range(first, first + count)]
        return torch.from_numpy(self.samples[chosen]).long()

    def score(self, model, logits_of, micro_batch=8):
        """Return {source: bits per byte} of a peer's model."""
        import torch
        from torch.nn.functional import cross_entropy

        was_training, results = model.training, {}
        model.eval()
        with torch.no_grad():
            for name, (inputs, targets) in self.windows.items():
                nats = 0.0
                for first in range(0, len(inputs), micro_batch):
                    rows = torch.from_numpy(inputs[first : first + micro_batch])
                    wanted = torch.from_numpy(targets[first : first + micro_batch])
                    logits = logits_of(rows).float()
                    nats += cross_entropy(
                        logits.flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum"
                    ).item()
                results[name] = nats / math.log(2) / self.sources[name]
        model.train(was_training)
        return results


def caravan(job, meter):
    """Train by the stage; return what is to be known of the model."""
    from stages import pretrain
    from stages.lib.training.trainer import Trainer

    facts = {}

    def measured(method):
        def call(trainer, *words, **names):
            with meter.paused():
                result = method(trainer, *words, **names)
                if method is evaluate:
                    scores = {name: of["loss_bits_per_byte"] for name, of in result.items()}
                    meter.add(trainer.position.step, scores)
            return result

        return call

    def train(trainer, *words, **names):
        facts["parameters"] = sum(parameter.numel() for parameter in trainer.state.model.parameters())
        meter.start()
        return whole(trainer, *words, **names)

    save, evaluate, whole = Trainer.save, Trainer.evaluate, Trainer.train
    Trainer.save, Trainer.evaluate, Trainer.train = measured(save), measured(evaluate), train
    directory = Path(job["directory"])
    if code := pretrain.main(harness.training_words(job["corpus"], directory, job["recipe"])):
        raise RuntimeError(f"stages.pretrain ended with exit code {code}: see its message above")
    return facts


def litgpt(job, meter):
    """Train by litgpt.pretrain."""
    import torch
    from litgpt import pretrain
    from litgpt.args import EvalArgs
    from litgpt.data import DataModule

    data, shape, warmup, facts = Data(job), job["shape"], job["warmup_steps"], {}
    default = inspect.signature(pretrain.setup).parameters["train"].default
    micro_batch = math.gcd(default.micro_batch_size, shape["batch"])
    passes = shape["batch"] // micro_batch
    changed = {"global_batch_size": shape["batch"], "micro_batch_size": micro_batch}
    changed["max_tokens"] = job["steps"] * shape["batch"] * shape["length"]
    changed["tie_embeddings"] = shape["model"]["tie_word_embeddings"]
    optimizer = "AdamW"
    if job["learning_rate"]:
        changed["lr_warmup_steps"] = warmup
        optimizer = {"class_path": "torch.optim.AdamW", "init_args": {"lr": job["learning_rate"]}}
    fetched = itertools.count()

    def collate(rows):
        done = next(fetched)  # passes before this batch
        if not done:  # after litgpt's check of its settings
            meter.start()
        elif done % passes == 0 and meter.is_due(done // passes):
            model = facts["model"]
            with meter.paused():
                meter.add(done // passes, data.score(model, model))
        return torch.stack(rows)

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return (job["steps"] + 1) * shape["batch"]

        def __getitem__(self, number):
            return data.rows(number, 1)[0]

    class Samples(DataModule):
        def connect(self, tokenizer=None, batch_size=1, max_seq_length=None):
            self.batch_size = batch_size

        def train_dataloader(self):
            return torch.utils.data.DataLoader(Rows(), self.batch_size, collate_fn=collate)

        def val_dataloader(self):  # litgpt checks its settings on two batches before the first step
            return torch.utils.data.DataLoader(Rows(), self.batch_size)

    def fit(**names):
        facts["model"] = names["state"]["model"]
        facts["parameters"] = sum(parameter.numel() for parameter in facts["model"].parameters())
        fit_of_litgpt(**names)

    fit_of_litgpt, pretrain.fit = pretrain.fit, fit
    pretrain.save_checkpoint = lambda *_: None  # after the last step: not counted, and it reads our command line
    with contextlib.redirect_stdout(sys.stderr):
        pretrain.setup(
            "learning",
            harness.litgpt_config(shape["model"], shape["vocab_size"], shape["length"]),
            out_dir=Path(job["directory"]),
            precision="32-true",
            data=Samples(),
            train=dataclasses.replace(default, **changed),
            eval=EvalArgs(interval=10**9, max_iters=1, final_validation=False),
            optimizer=optimizer,
            devices=1,
            logger_name="csv",
            seed=job["seed"],
        )
    return {"parameters": facts["parameters"]}


NANOCHAT = {"unembedding_lr": 0.008, "embedding_lr": 0.3, "scalar_lr": 0.5, "matrix_lr": 0.02}
"""Learning rates of nanochat at NANOCHAT_BATCH tokens per step: defaults of its scripts/base_train.py of 2026."""

NANOCHAT_BATCH, NANOCHAT_DECAY, NANOCHAT_RATIO = 2**19, 0.28, 12
"""Its batch of reference, weight decay, and tokens per parameter of blocks and head."""


def nanochat(job, meter):
    """Train the GPT of a checkout of nanochat by its optimizer and schedules."""
    import torch

    sys.path.insert(0, job["nanochat"])
    from nanochat.gpt import GPT, GPTConfig

    data, shape, steps = Data(job), job["shape"], job["steps"]
    torch.manual_seed(job["seed"])
    sizes = {"sequence_len": shape["length"], "vocab_size": shape["vocab_size"]}

    def built(of):
        heads = of["num_attention_heads"]
        config = GPTConfig(
            **sizes, n_layer=of["num_hidden_layers"], n_embd=of["hidden_size"], n_head=heads, n_kv_head=heads
        )
        with torch.device("meta"):
            model = GPT(config)
        counts = model.num_scaling_params()
        return model, NANOCHAT_RATIO * (counts["active_transformer_matrices"] + counts["lm_head"])

    with contextlib.redirect_stdout(sys.stderr):
        model, horizon = built(shape["model"])
        _, horizon_of_reference = built({"num_hidden_layers": 12, "hidden_size": 768, "num_attention_heads": 6})
        model.to_empty(device="cpu")
        model.init_weights()
        batch = shape["batch"] * shape["length"] / NANOCHAT_BATCH
        scale = batch**0.5 if job["learning_rate"] is None else job["learning_rate"] / NANOCHAT["matrix_lr"]
        decay = NANOCHAT_DECAY * batch**0.5 * horizon_of_reference / horizon
        rates = {name: rate * scale for name, rate in NANOCHAT.items()}
        optimizer = model.setup_optimizer(**rates, weight_decay=decay)
    warmup = 40 if job["learning_rate"] is None else job["warmup_steps"]
    decaying = round(0.65 * steps)
    meter.start()
    for step in range(steps):
        rows = data.rows(step * shape["batch"], shape["batch"])
        model(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()).backward()
        left = min(1.0, (steps - step) / decaying)
        rate = (step + 1) / warmup if step < warmup else left + (1 - left) * 0.05
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * rate
            if group["kind"] == "muon":
                momentum = 0.85 + (0.97 - 0.85) * step / 400 if step < 400 else 0.97 * left + 0.90 * (1 - left)
                group |= {"momentum": momentum, "weight_decay": decay * 0.5 * (1 + math.cos(math.pi * step / steps))}
        optimizer.step()
        model.zero_grad(set_to_none=True)
        if meter.is_due(step + 1):
            with meter.paused():
                meter.add(step + 1, data.score(model, model))
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def transformers(job, meter):
    """Train by transformers' Trainer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed

    data, shape = Data(job), job["shape"]
    set_seed(job["seed"])
    model = LlamaForCausalLM(
        LlamaConfig(**shape["model"], vocab_size=shape["vocab_size"], max_position_embeddings=shape["length"] + 1)
    )

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return job["steps"] * shape["batch"]

        def __getitem__(self, number):
            row = data.rows(number, 1)[0]
            return {"input_ids": row, "labels": row}

    class Curve(TrainerCallback):
        def on_train_begin(self, *_, **names):
            meter.start()

        def on_step_end(self, arguments, state, control, **names):
            if meter.is_due(state.global_step):
                with meter.paused():
                    scores = data.score(model, lambda rows: model(input_ids=rows, use_cache=False).logits)
                    meter.add(state.global_step, scores)

    changed = {}
    if job["learning_rate"]:
        changed = {"learning_rate": job["learning_rate"], "warmup_steps": job["warmup_steps"]}
    arguments = TrainingArguments(
        output_dir=job["directory"],
        max_steps=job["steps"],
        per_device_train_batch_size=shape["batch"],
        seed=job["seed"],
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        **changed,
    )
    with contextlib.redirect_stdout(sys.stderr):
        Trainer(model=model, args=arguments, train_dataset=Rows(), callbacks=[Curve()]).train()
    return {"parameters": sum(parameter.numel() for parameter in model.parameters())}


def work(job):
    """Train as a job says; return the curve and what is to be known of the model."""
    import torch

    torch.set_num_threads(1)
    meter = Meter(job)
    train = {"caravan": caravan, "litgpt": litgpt, "nanochat": nanochat, "transformers": transformers}
    facts = train[job["system"]](job, meter)
    meter.stop()
    return facts | {"curve": meter.curve, "cpu_seconds": meter.used}


def write_data(arguments, seed, path):
    """Write the arrays of a seed for the peers; return the shape of our model and its batch."""
    import numpy as np

    from stages.lib import recipe as recipes
    from stages.lib.tokens import loader
    from stages.lib.tokens.corpus import Corpus
    from stages.lib.training import validation
    from stages.pretrain import PretrainRecipe

    corpus = Corpus(arguments.corpus)
    keys = harness.recipe_of(arguments, seed, 100, 100, arguments.validation_tokens)
    recipe = recipes.load(PretrainRecipe, keys, "pretrain")
    samples = loader.from_recipe(recipe, corpus).samples(corpus, None)
    sources, model = samples.mixture.sources, recipe.model
    windows = validation.from_corpus(corpus, sources, recipe.seq_len, arguments.validation_tokens)
    arrays = {
        f"{name}.{kind}": of[at] for name, of in windows.windows.items() for at, kind in ((0, "inputs"), (1, "targets"))
    }
    arrays |= {"sources": np.array(sources), "bytes": np.array([windows.num_bytes[name] for name in sources])}
    np.savez(path, samples=samples.read(np.arange(samples.rows.sum())), **arrays)
    return {
        "vocab_size": corpus.tokenizer["vocab_size"],
        "model": {name: getattr(model, name) for name in (*harness.SIZES, "tie_word_embeddings")},
        "length": recipe.seq_len,
        "batch": recipe.global_batch_size,
    }


class Bench:
    """Trainings with the options of a call, each in a process of its own."""

    def __init__(self, arguments, directory):
        self.arguments, self.directory = arguments, directory
        self.shapes, self.paces = {}, {}

    def data_of(self, seed):
        """Return the path of the arrays of a seed."""
        path = self.directory / f"seed_{seed}.npz"
        if seed not in self.shapes:
            self.shapes[seed] = write_data(self.arguments, seed, path)
        return path

    def train(self, system, learning_rate, seed, steps, every, validation_rows=None):
        """Train once; return the figures of the worker."""
        arguments, data = self.arguments, self.data_of(seed)
        shape = self.shapes[seed]
        tokens = (validation_rows or 0) * shape["length"] or arguments.validation_tokens
        recipe = harness.recipe_of(arguments, seed, steps, every, tokens)
        with tempfile.TemporaryDirectory(dir=self.directory) as made:
            job = {
                **{"system": system, "learning_rate": learning_rate, "seed": seed, "steps": steps, "every": every},
                **{"recipe": recipe, "corpus": str(arguments.corpus.resolve()), "directory": made, "data": str(data)},
                **{"shape": shape, "validation_rows": validation_rows, "nanochat": str(arguments.nanochat)},
                "warmup_steps": recipe["schedule"]["warmup_steps"],
            }
            python = sys.executable if system == "caravan" else arguments.peers_python
            # litgpt calls torch.compile, whose compilation would be a large part of such a budget
            variables = harness.ONE_THREAD | {"TORCHDYNAMO_DISABLE": "1"}
            shown = None if arguments.verbose else subprocess.DEVNULL
            return harness.call("learning", "work", job, python=python, variables=variables, stderr=shown)

    def pace(self, system):
        """Return the CPU-seconds of a step of a system, measured once."""
        if system not in self.paces:
            found = self.train(system, None, self.arguments.seeds[0], PACE_STEPS, PACE_EVERY, validation_rows=1)
            first, last = found["curve"][0], found["curve"][-1]
            self.paces[system] = (last["cpu_seconds"] - first["cpu_seconds"]) / (last["step"] - first["step"])
        return self.paces[system]

    def run(self, system, learning_rate, seed):
        """Train for the budget; return the figures of the training."""
        steps = max(2, round(self.arguments.cpu_seconds / self.pace(system)))
        found = self.train(system, learning_rate, seed, steps, -(-steps // self.arguments.points))
        last = found["curve"][-1]
        named = {"system": system, "learning_rate": learning_rate, "seed": seed, "steps": steps}
        return named | {"loss_bits_per_byte": last["loss_bits_per_byte"]} | found


def available(arguments):
    """Return the systems of --systems that are installed; print a line for each other one."""
    names = []
    for name in arguments.systems:
        if name == "nanochat":
            is_there = arguments.nanochat is not None
        else:
            packages = PACKAGES.get(name, ())
            is_there = len(harness.versions_of(arguments.peers_python, packages)) == len(packages)
        if is_there:
            names.append(name)
        else:
            print(f"{name} is not installed and left out: {SYSTEMS[name]}")
    return names


def at(cpu_seconds, curve):
    """Return the loss of a curve [[CPU-seconds, loss], ...] at a time, its last one if it ended before."""
    import numpy as np

    return float(np.interp(cpu_seconds, *zip(*curve, strict=True)))


def summary(runs, budget):
    """Return {row: {"learning_rate", "loss_bits_per_byte", ...}}: the defaults, and the best of the others.

    `budget`: CPU-seconds. A training may have used more; the loss at the budget is that of the curve.
    """
    by_setting, rows = {}, {}
    for run in runs:
        by_setting.setdefault((run["system"], run["learning_rate"]), []).append(run)

    def mean(setting, key="loss_bits_per_byte"):
        return statistics.mean(run[key] for run in by_setting[setting])

    for system in dict.fromkeys(run["system"] for run in runs):
        rates = [rate for name, rate in by_setting if name == system and rate is not None]
        settings = {system: (system, None)}
        if rates:
            best = min(rates, key=lambda rate: mean((system, rate)))
            settings[f"{system}, best of {len(rates)}"] = (system, best)
        for row, setting in settings.items():
            rows[row] = {
                "learning_rate": setting[1],
                "loss_bits_per_byte": mean(setting),
                "seeds": [run["loss_bits_per_byte"] for run in by_setting[setting]],
                "cpu_seconds": mean(setting, "cpu_seconds"),
                "steps": by_setting[setting][0]["steps"],
                "parameters": by_setting[setting][0]["parameters"],
                "curve": [
                    [statistics.mean(point[key] for point in points) for key in ("cpu_seconds", "loss_bits_per_byte")]
                    for points in zip(*(run["curve"] for run in by_setting[setting]), strict=True)
                ],
            }
            rows[row]["at_budget"] = at(budget, rows[row]["curve"])
    return rows


def draw(results, image):
    """Write the picture of a file of results: bits per byte against CPU-seconds, a line per row."""
    import matplotlib
    from matplotlib.figure import Figure

    from stages.lib.render import chart

    rows = json.loads(results.read_text(encoding="utf-8"))["summary"]
    ends = sorted((of["curve"][-1][1], name) for name, of in rows.items())
    everything = [value for of in rows.values() for _, value in of["curve"]]
    end = max(of["curve"][-1][0] for of in rows.values())
    gap, heights, before = (max(everything) - min(everything)) / 18, {}, -math.inf
    for value, name in ends:  # labels of lines that end beside each other would overlap
        heights[name] = before = max(value, before + gap)
    image.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(chart.STYLE):
        figure = Figure()
        axes = figure.subplots()
        for number, (name, of) in enumerate(rows.items()):
            color = chart.color_of(number)
            axes.plot(*zip(*of["curve"], strict=True), color=color, marker="o", markersize=3)
            axes.annotate(
                f"{name}: {of['loss_bits_per_byte']:.2f}", (end, heights[name]), (8, 0), textcoords="offset points",
                va="center", color=color, fontsize=9, annotation_clip=False,
            )  # fmt: skip
        axes.set_xlabel("CPU time of the training (s)")
        axes.set_ylabel("loss on held-out text (bits per byte)")
        axes.set_xlim(left=0)
        figure.savefig(image, metadata={"Date": None} if image.suffix == ".svg" else None)
    print(f"written to {image}")


def versions_of(arguments, systems):
    """Return the versions of the peers, as their environment has them."""
    found = {}
    for name in systems:
        if name == "nanochat":
            found[name] = harness.commit(arguments.nanochat)
        elif name != "caravan":
            found |= harness.versions_of(arguments.peers_python, [name])
    return found


def main():
    """Train all, and write the JSON file."""
    parser = harness.training_parser_of(__doc__, "learning")
    parser.add_argument("--systems", choices=SYSTEMS, nargs="+", default=list(SYSTEMS))
    parser.add_argument("--peers-python", default=sys.executable, help="the Python of the environment with the peers")
    parser.add_argument("--nanochat", type=Path, help="a checkout of nanochat (default: it is left out)")
    parser.add_argument("--cpu-seconds", type=float, default=30, help="of each training")
    parser.add_argument("--learning-rates", type=float, nargs="*", help="for the best of (default: two of each)")
    parser.add_argument("--points", type=int, default=6, help="of each curve")
    parser.add_argument("--verbose", action="store_true", help="show what the trainings print")
    parser.add_argument("--draw", action="store_true", help="train nothing: write the picture of --output's results")
    parser.add_argument("--image", type=Path, default=IMAGE, help=f"of --draw (default: {IMAGE.relative_to(HOME)})")
    arguments = parser.parse_args()
    if arguments.draw:
        draw(arguments.output, arguments.image)
        return
    systems, runs = available(arguments), []
    settings = [
        (system, rate)
        for system in systems
        for rate in (None, *((arguments.learning_rates or TUNED[system]) if system in TUNED else ()))
    ]
    ended = harness.EndedRuns(arguments.output)
    recipe = harness.recipe_of(arguments, arguments.seeds[0], 100, 100, arguments.validation_tokens)
    of_call = [arguments.cpu_seconds, arguments.points, arguments.validation_tokens, str(arguments.corpus)]
    with tempfile.TemporaryDirectory(prefix="caravan-learning-") as made:
        bench = Bench(arguments, Path(made))
        for seed, (system, rate) in itertools.product(arguments.seeds, settings):
            run = ended.figures_of([system, rate, seed, recipe, *of_call], bench.run, system, rate, seed)
            runs.append(run)
            named = system if rate is None else f"{system} at {rate:g}"
            print(f"{named} seed {seed}: {run['loss_bits_per_byte']:.4f} bits per byte after {run['steps']} steps, "
                  f"{run['cpu_seconds']:.1f} CPU-seconds", flush=True)  # fmt: skip
    rows = summary(runs, arguments.cpu_seconds)
    for name, of in rows.items():
        print(f"{name:28} {of['at_budget']:.4f} bits per byte after {arguments.cpu_seconds:g} CPU-seconds")
    figures = {
        "cpu_seconds": arguments.cpu_seconds,
        "peers": versions_of(arguments, systems),
        "recipe": recipe,
        "summary": rows,
        "runs": runs,
    }
    ended.write("learning", ("torch",), figures)


if __name__ == "__main__":
    main()
