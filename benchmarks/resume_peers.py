"""The trainings that `benchmarks.resume` kills: ours, and those of four peers by their own loaders and checkpoints.

    python -m benchmarks.resume_peers JOB    # one start of one training; benchmarks.resume calls it

It runs in the environment of the peer, so it imports nothing of this checkout but benchmarks.harness, and what
`caravan` trains with. A training resumes from its newest checkpoint if there is one, in the way its own documentation
names. What stands in for a GPU:

- torchtitan: `Trainer` on the device cpu, with scaled_dot_product_attention for FlexAttention, which has no backward
  pass on a CPU. Documents fill a sample each, so both attend to the same tokens.
- litgpt: DDP for FSDP on several ranks, which Lightning refuses on a CPU.
- nanochat: the loop here takes the steps of its scripts/base_train.py; loader, checkpoints, model and optimizer are its
  own.
"""

import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from benchmarks import harness

BOS, EOS, FIRST, DIGIT = 1, 2, 3, 64
"""Tokens that begin and end a document, the first of the others, and the base of the two digits of its number."""

LAYERS, WIDTH, HEADS, INTERMEDIATE, LEARNING_RATE = 2, 32, 4, 64, 1e-2
MODEL = {
    **{"num_hidden_layers": LAYERS, "hidden_size": WIDTH, "num_attention_heads": HEADS, "num_key_value_heads": HEADS},
    "intermediate_size": INTERMEDIATE,
}
"""The Llama in the names of LlamaConfig."""


class Recorder:
    """Records which samples enter the model at which step, and kills the process after a step.

    A forward hook of all modules: the tokens are the inputs of the first embedding. `step()` returns the steps that
    the training has taken by its own count, which a checkpoint restores.
    """

    def __init__(self, job):
        import torch

        rank = int(os.environ.get("RANK", "0"))
        self.file = open(f"{job['directory']}/samples-{job['start']}-{rank}.jsonl", "w", encoding="utf-8")  # noqa: SIM115
        self.kill_after, self.embedding, self.step = job["kill_after"], None, None
        self.type = torch.nn.Embedding
        torch.nn.modules.module.register_module_forward_pre_hook(self.enter)

    def enter(self, module, inputs):
        """Record the samples of a forward pass of training."""
        known = isinstance(module, self.type) and self.embedding in (None, module)
        if not known or not module.training or inputs[0].is_meta:
            return
        self.embedding, step = module, self.step() + 1
        if self.kill_after is not None and step > self.kill_after:
            self.write({"killed_after": step - 1})
            os.kill(os.getpid(), signal.SIGKILL)
        rows = inputs[0]
        if not (rows[:, 0] == BOS).all():
            raise ValueError("a sample must be a document: it does not begin with BOS")
        self.write({"step": step, "samples": number_of(rows).tolist()})

    def write(self, entry):
        """Append a line, which a kill does not take back."""
        self.file.write(json.dumps(entry) + "\n")
        self.file.flush()


def number_of(rows):
    """Return the numbers of documents [B] by their tokens [B, L]."""
    return (rows[:, 1] - FIRST) * DIGIT + rows[:, 2] - FIRST


def documents(job):
    """Return all documents, int64 [documents, L + 1]; the last `job["held_out"]` are not for training."""
    import numpy as np

    return np.load(f"{job['corpus']}/documents.npy")


def held_out_loss(job, model, logits_of):
    """Return the cross-entropy per token of the documents that are held out."""
    import torch

    rows = torch.from_numpy(documents(job)[-job["held_out"] :])
    model.eval()
    with torch.no_grad():
        logits = logits_of(rows[:, :-1].contiguous()).double()
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten()).item()


def passes(job):
    """Return the micro-batches per step of a rank."""
    return job["batch"] // (job["micro_batch_size"] * job["ranks"])


def caravan(job, record):
    """Train by the stage `pretrain`."""
    from stages import pretrain
    from stages.lib.training.trainer import Trainer

    def train(trainer, *words, **names):
        record.step = lambda: trainer.position.step
        return whole(trainer, *words, **names)

    whole, Trainer.train = Trainer.train, train
    model = MODEL | {"max_position_embeddings": job["seq_len"]}
    recipe = {"model": model, "weights": {"web": 1}, "seq_len": job["seq_len"], "global_batch_size": job["batch"]}
    recipe |= {"dtype": "float32", "optimizer": {"learning_rate": LEARNING_RATE}, "schedule": {"warmup_steps": 5}}
    operation = {"steps": job["steps"], "micro_batch_size": job["micro_batch_size"]}
    operation["checkpoint"] = {"every": job["every"], "keep": 2, "asynchronous": False}
    operation["validation"] = {"every": job["steps"], "tokens": job["held_out"] * job["seq_len"]}
    directory = Path(job["directory"])
    words = harness.training_words(f"{job['corpus']}/manifest.json", directory, recipe, operation)
    if code := pretrain.main(words):
        sys.exit(code)
    (metrics,) = directory.glob("train/*/metrics.jsonl")
    entries = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    return [entry["validation"]["web"]["loss"] for entry in entries if "validation" in entry][-1]


def litgpt(job, record):
    """Train by litgpt.pretrain on litdata's streaming dataset, with `resume="auto"`."""
    import lightning
    from lightning.fabric.strategies import DDPStrategy
    from litdata import optimize
    from litdata.streaming import TokensLoader
    from litgpt import pretrain
    from litgpt.args import EvalArgs, TrainArgs
    from litgpt.data import LitData

    data, length, loss = Path(job["corpus"]) / "litdata", job["seq_len"], []
    if not data.exists():
        loader = TokensLoader(block_size=length + 1)
        chunk = {"chunk_size": 128 * (length + 1), "num_workers": 1, "item_loader": loader}
        optimize(fn=tokens_of, inputs=[f"{job['corpus']}/documents.npy"], output_dir=str(data), **chunk)

    def fit(**names):
        record.step = lambda: names["state"]["step_count"]
        of_litgpt(**names)
        model = names["state"]["model"]
        loss.append(held_out_loss(job, model, model))

    def fabric(strategy, **names):
        return of_lightning(strategy=strategy if strategy == "auto" else DDPStrategy(), **names)

    of_litgpt, pretrain.fit = pretrain.fit, fit
    of_lightning, lightning.Fabric = lightning.Fabric, fabric
    pretrain.save_hyperparameters = lambda *_: None  # reads the command line of litgpt
    pretrain.setup(
        "resume",
        harness.litgpt_config(MODEL, job["vocab_size"], length),
        out_dir=Path(job["directory"]),
        precision="32-true",
        resume="auto",
        data=LitData(data_path=data),
        train=TrainArgs(
            save_interval=job["every"],
            global_batch_size=job["batch"],
            micro_batch_size=job["micro_batch_size"],
            max_tokens=job["steps"] * job["batch"] * length,
            max_norm=1.0,
            min_lr=LEARNING_RATE / 10,
            lr_warmup_steps=5,
        ),
        eval=EvalArgs(interval=10**9, max_iters=1, final_validation=False),
        optimizer={"class_path": "torch.optim.AdamW", "init_args": {"lr": LEARNING_RATE}},
        devices=job["ranks"],
        logger_name="csv",
    )
    return loss[0]


def tokens_of(path):
    """Yield the documents of a file for litdata."""
    import numpy as np
    import torch

    yield from torch.from_numpy(np.load(path))


def transformers(job, record):
    """Train by transformers' Trainer, with `resume_from_checkpoint=True`."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

    class Rows(torch.utils.data.Dataset):
        rows = torch.from_numpy(documents(job)[: -job["held_out"], :-1])

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, number):
            return {"input_ids": self.rows[number], "labels": self.rows[number]}

    set_seed(0)
    sizes = {"vocab_size": job["vocab_size"], "max_position_embeddings": job["seq_len"]}
    model = LlamaForCausalLM(LlamaConfig(**MODEL, **sizes))
    arguments = TrainingArguments(
        output_dir=job["directory"],
        max_steps=job["steps"],
        per_device_train_batch_size=job["micro_batch_size"],
        gradient_accumulation_steps=passes(job),
        learning_rate=LEARNING_RATE,
        save_steps=job["every"],
        save_total_limit=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    record.step = lambda: trainer.state.global_step
    trainer.train(resume_from_checkpoint=bool(list(Path(job["directory"]).glob("checkpoint-*"))))
    return held_out_loss(job, model, lambda rows: model(input_ids=rows, use_cache=False).logits)


def torchtitan(job, record):
    """Train by torchtitan's Trainer on a streamed dataset of `datasets`, as its c4; it resumes by itself."""
    import torch

    alone = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}
    for name, value in alone.items():
        os.environ.setdefault(name, value)
    torch._utils._get_available_device_type = lambda: "cpu"
    memory = type("Memory", (), {"total_memory": 1 << 30})()
    stand_ins = {"get_device_name": "cpu", "get_device_properties": memory, "memory_stats": {}, "current_device": 0}
    for name in ("reset_peak_memory_stats", "empty_cache"):
        stand_ins[name] = None
    for name, value in stand_ins.items():
        setattr(torch.cpu, name, lambda *_, value=value: value)
    from datasets import load_dataset
    from torchtitan.components.optimizer import default_adamw
    from torchtitan.hf_datasets import DatasetConfig, text_datasets
    from torchtitan.models import llama3
    from torchtitan.models.common.attention import ScaledDotProductAttention
    from torchtitan.models.llama3.config_registry import llama3_debugmodel
    from torchtitan.trainer import Trainer

    if not hasattr(torch.distributed, "set_timeout"):  # torch 2.13 does not have it yet
        torch.distributed.set_timeout = lambda *_: None
    files = sorted(map(str, Path(job["corpus"]).glob("text/*.jsonl")))
    text_datasets.DATASETS["numbered"] = DatasetConfig(
        path="json",
        loader=lambda path: load_dataset(path, data_files=files, split="train", streaming=True),
        sample_processor=lambda sample: sample["text"],
    )
    config = llama3_debugmodel()
    model, vocab_size = config.model_spec.model, job["vocab_size"]
    model.dim, model.vocab_size = WIDTH, vocab_size
    model.tok_embeddings.num_embeddings, model.tok_embeddings.embedding_dim = vocab_size, WIDTH
    model.norm.normalized_shape = model.lm_head.in_features = WIDTH
    model.lm_head.out_features = vocab_size
    rope = model.layers[0].attention.rope
    rope.dim, rope.max_seq_len = WIDTH // HEADS, job["seq_len"]
    sizes = {"n_layers": LAYERS, "dim": WIDTH, "n_heads": HEADS, "hidden_dim": INTERMEDIATE}
    model.layers = llama3._build_llama3_layers(**sizes, rope=rope, attn_backend="flex")
    for layer in model.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()
    config.hf_assets_path, config.dump_folder = f"{job['corpus']}/tokenizer", job["directory"]
    config.loss, config.optimizer = config.loss.loss_fn, default_adamw(lr=LEARNING_RATE)
    config.dataloader.dataset = "numbered"
    training = {"local_batch_size": job["micro_batch_size"], "global_batch_size": job["batch"], "steps": job["steps"]}
    training |= {"seq_len": job["seq_len"], "disable_cuda_graphs": True, "mixed_precision_param": "float32"}
    for name, value in training.items():
        setattr(config.training, name, value)
    config.checkpoint.enable, config.checkpoint.interval, config.debug.seed = True, job["every"], 0
    config.activation_checkpoint = config.validator.enable = None
    config.parallelism.spmd_backend = "partial_dtensor"
    trainer = Trainer(config)
    record.step = lambda: trainer.step - 1
    trainer.train()
    positions = torch.arange(job["seq_len"]).expand(job["held_out"], -1)
    network = trainer.model_parts[0]
    return held_out_loss(job, network, lambda rows: network(rows, positions=positions))


def nanochat(job, record):
    """Train nanochat's GPT, with --resume-from-step of its newest checkpoint."""
    os.environ["NANOCHAT_BASE_DIR"] = job["corpus"]
    sys.path.insert(0, job["nanochat"])
    import torch
    from nanochat import checkpoint_manager, dataloader
    from nanochat.common import get_dist_info
    from nanochat.gpt import GPT, GPTConfig

    class Words:
        def get_bos_token_id(self):
            return BOS

        def encode(self, texts, prepend, num_threads):
            return [[prepend, *(int(word) for word in text.split()), EOS] for text in texts]

    files = sorted(map(str, Path(job["corpus"]).glob("parquet/*.parquet")))
    dataloader.list_parquet_files = lambda **_: files
    rank, directory = get_dist_info()[1], f"{job['directory']}/checkpoints"
    torch.manual_seed(0)
    sizes = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "n_kv_head": HEADS}
    with torch.device("meta"):
        model = GPT(GPTConfig(sequence_len=job["seq_len"], vocab_size=job["vocab_size"], **sizes))
    model.to_empty(device="cpu")
    model.init_weights()
    step, position, moments = 0, None, None
    if saved := sorted(Path(directory).glob("model_*.pt")):
        resumed = int(saved[-1].stem.rpartition("_")[2])
        weights, moments, meta = checkpoint_manager.load_checkpoint(directory, resumed, "cpu", True, rank)
        model.load_state_dict(weights, strict=True, assign=True)
        step, position = meta["step"], meta["dataloader_state_dict"]
    optimizer = model.setup_optimizer()
    if moments:
        optimizer.load_state_dict(moments)
    if job["ranks"] > 1:  # its optimizer waits for all ranks at the first step, which rank 1 must have reached
        torch.distributed.init_process_group("gloo")
        torch.distributed.barrier()
        raise NotImplementedError("the loop here trains on one rank")
    record.step = lambda: step
    batches = dataloader.tokenizing_distributed_data_loader_with_state_bos_bestfit(
        Words(), job["micro_batch_size"], job["seq_len"], "train", device="cpu", resume_state_dict=position
    )
    inputs, targets, position = next(batches)
    while step < job["steps"]:
        for _ in range(passes(job)):
            (model(inputs, targets) / passes(job)).backward()
            inputs, targets, position = next(batches)
        optimizer.step()
        model.zero_grad(set_to_none=True)
        step += 1
        if step % job["every"] == 0:
            meta = {"step": step, "dataloader_state_dict": position}
            state = model.state_dict(), optimizer.state_dict()
            checkpoint_manager.save_checkpoint(directory, step, *state, meta, rank)
    return held_out_loss(job, model, model)


def main():
    """Train as the file of a job says; rank 0 writes the final loss."""
    import torch

    torch.set_num_threads(1)
    job = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    train = {"caravan": caravan, "litgpt": litgpt, "nanochat": nanochat}
    train |= {"torchtitan": torchtitan, "transformers": transformers}
    with contextlib.redirect_stdout(sys.stderr):
        loss = train[job["system"].partition("@")[0]](job, Recorder(job))
    if os.environ.get("RANK", "0") == "0":
        (Path(job["directory"]) / "loss.json").write_text(json.dumps(loss), encoding="utf-8")


if __name__ == "__main__":
    main()
