"""Training steps of transformers' Llama on random tokens, as its own Trainer takes them in bfloat16.

    python -m benchmarks.gpu.transformers_peer llama3-1b OUTPUT --seq-len 4096 --micro-batch-size 2

Weights, gradients and moments are bfloat16, where ours has float32 weights; gradient checkpointing is on.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from benchmarks import train_gpu
from benchmarks.dummy import DummySamples
from stages.lib.training.step_metrics import peak_memory_mb

SETTINGS = "bfloat16 weights and moments, SDPA, gradient checkpointing, fused AdamW"
WARM_UP, STEPS = 2, 6


def build(shape, device):
    """Return (model, vocab_size) of `tiny`, or of the run in config/NAME.yaml."""
    from transformers import LlamaConfig, LlamaForCausalLM

    ours, vocab_size = train_gpu.model_of(shape)
    names = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    keys = {name: getattr(ours, name) for name in (*names, "tie_word_embeddings")}
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(vocab_size=vocab_size, use_cache=False, **keys)).to(torch.bfloat16)
    model.gradient_checkpointing_enable()
    return model.train(), vocab_size


def main():
    """Measure, and write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape")
    parser.add_argument("output", type=Path)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--micro-batch-size", type=int, default=1)
    arguments = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, vocab_size = build(arguments.shape, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    samples, size = DummySamples(vocab_size, arguments.seq_len, 0), arguments.micro_batch_size
    times = []
    for step in range(WARM_UP + STEPS):
        begun = time.perf_counter()
        tokens, _ = samples.batch(range(step * size, (step + 1) * size))
        ids = torch.from_numpy(tokens).long().to(device)
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - begun)
    found = {
        "tokens_per_second": size * arguments.seq_len / statistics.median(times[WARM_UP:]),
        "peak_memory_mb": peak_memory_mb(device),
        "settings": SETTINGS,
        "seconds": times,
    }
    arguments.output.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
