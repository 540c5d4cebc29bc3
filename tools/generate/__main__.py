"""Continue a prompt with a trained model, or talk to it: text on standard output, while it is generated.

    python -m tools.generate --model results/runs/base/models/00000120.json --prompt "def read("
    python -m tools.generate --model results/runs/base/export/00000120 --prompt "def read(" --temperature 0 --tokens 20
    python -m tools.generate --model results/runs/chat/export/00000120 --chat --system "Answer in one sentence."

--model is a milestone's manifest, the directory of a checkpoint, a run directory (its newest complete checkpoint), the
manifest of an export, or the directory of a Hugging Face model. Nothing else is needed: a checkpoint stores the model
config and the digest of its tokenizer, which is searched in tokenizers/ of the directories above it.

If there are several texts, each begins with a line `--- prompt 1, sample 1 ---`. Sample n of a prompt is drawn with the
seed SEED + n - 1, whatever the other prompts and samples are.

--chat is a conversation: a line is a message, and the model remembers those before. Its chat template is that of the
model's training, or of the tokenizer beside it; --template gives another, chatml, tulu or a Jinja file. An
answer ends at EOS, after --tokens tokens, or by Ctrl-C; Ctrl-D ends the conversation. If the context is full, the
oldest messages are dropped. Answer n is drawn with the seed SEED + n - 1.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib import stage
from stages.lib.errors import UserError
from stages.lib.log import logger

if TYPE_CHECKING:
    import torch

    from stages.lib.model.transformer import Transformer
    from stages.lib.tokenizer.prompt_tokenizer import PromptTokenizer


def run(arguments: argparse.Namespace) -> None:
    """Write the texts; Ctrl-C in the middle of one ends its line."""
    try:
        (chat if arguments.chat else generate)(arguments)
    except KeyboardInterrupt:
        print()
        raise


def generate(arguments: argparse.Namespace) -> None:
    """Find the model and its tokenizer, read the prompts, and continue each."""
    check_options(arguments)
    for name in ("system", "template"):
        if getattr(arguments, name) is not None:
            raise UserError(f"--{name} must be omitted without --chat")
    prompts = read_prompts(arguments)
    import torch

    from stages.lib.checkpoints import find_model
    from tools.generate import find_tokenizer

    device = device_of(arguments.device)
    source = find_model.find(arguments.model, base=arguments.base)
    text = find_tokenizer.text_of(source, arguments.tokenizer)
    encoded = [text.encode(prompt) for prompt in prompts]
    positions = source.model_config.max_position_embeddings
    for number, tokens in enumerate(encoded, 1):
        if len(tokens) > positions:
            limit = f"the model's {positions} tokens (max_position_embeddings)"
            raise UserError(f"prompt {number} must have at most {limit}, found {len(tokens)}")
        if max(tokens) >= source.vocab_size:
            raise UserError(f"prompt {number} must have ids under {source.vocab_size}, found {max(tokens)}")
    logger.info("%s on %s in %s", source.directory, device, arguments.dtype)
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without UTF-8 must not end a text
    begun, num_tokens = time.monotonic(), 0
    try:
        model = find_model.load(source, getattr(torch, arguments.dtype), device)
        logger.info("loaded in %.1f s", time.monotonic() - begun)
        begun = time.monotonic()
        for number, (prompt, tokens) in enumerate(zip(prompts, encoded, strict=True), 1):
            num_tokens += write_samples(arguments, model, text, prompt, tokens, number if len(prompts) > 1 else None)
    except torch.OutOfMemoryError:
        raise UserError(
            f"{device} has too little memory for this model with {arguments.samples} samples in {arguments.dtype}; "
            "try --dtype bfloat16, fewer --samples, or --device cpu"
        ) from None
    seconds = time.monotonic() - begun
    logger.info("%s tokens in %.1f s, %.1f tokens/s", num_tokens, seconds, num_tokens / seconds)


def chat(arguments: argparse.Namespace) -> None:
    """Find the model and its chat template, and hold a conversation."""
    check_options(arguments)
    for name in ("prompt", "prompt_file"):
        if getattr(arguments, name):
            raise UserError(f"--{name.replace('_', '-')} must be omitted with --chat, which reads standard input")
    if arguments.samples > 1:
        raise UserError(f"--samples must be 1 with --chat, got {arguments.samples}")
    import torch

    from stages.lib.checkpoints import find_model
    from tools.generate import find_tokenizer
    from tools.generate.conversation import History, converse, encoder

    device = device_of(arguments.device)
    source = find_model.find(arguments.model, base=arguments.base)
    text = find_tokenizer.text_of(source, arguments.tokenizer)
    encode = encoder(find_tokenizer.directory_of(source, arguments.tokenizer), arguments.template, source.template)
    positions = source.model_config.max_position_embeddings
    history = History(encode, positions, min(arguments.tokens, positions // 4), arguments.system)
    model = find_model.load(source, getattr(torch, arguments.dtype), device)
    logger.info("%s on %s in %s", source.directory, device, arguments.dtype)
    logger.info("Ctrl-C ends an answer, Ctrl-D the conversation")
    sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
    converse(model, text, history, arguments)


def check_options(arguments: argparse.Namespace) -> None:
    """Raise UserError naming an option that is out of bounds."""
    for name in ("tokens", "samples"):
        if getattr(arguments, name) < 1:
            raise UserError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    if not (arguments.temperature >= 0 and math.isfinite(arguments.temperature)):
        raise UserError(f"--temperature must be a number of at least 0, got {arguments.temperature}")
    if not 0 < arguments.top_p <= 1:
        raise UserError(f"--top-p must be greater than 0 and at most 1, got {arguments.top_p}")
    if not 0 <= arguments.seed < 1 << 62:
        raise UserError(f"--seed must be at least 0 and less than 2**62, got {arguments.seed}")
    if arguments.temperature == 0 and arguments.samples > 1:
        raise UserError(f"--samples must be 1 at --temperature 0, at which all are equal, got {arguments.samples}")


def read_prompts(arguments: argparse.Namespace) -> list[str]:
    """The prompts: those of --prompt, then those of --prompt-file."""
    prompts = list(arguments.prompt)
    for path in arguments.prompt_file:
        try:
            prompts.append(path.read_bytes().decode())
        except OSError as error:
            raise UserError(f"--prompt-file {path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise UserError(f"--prompt-file {path} must be UTF-8") from None
    if not prompts:
        raise UserError("--prompt or --prompt-file must give a text to continue")
    return prompts


def device_of(name: str | None) -> torch.device:
    """The torch device of --device; by default a GPU if there is one."""
    import torch

    has_gpu = torch.cuda.is_available()
    if name == "cuda" and not has_gpu:
        raise UserError("--device cuda needs a GPU, but torch finds none")
    return torch.device(name or ("cuda" if has_gpu else "cpu"))


def write_samples(
    arguments: argparse.Namespace,
    model: Transformer,
    text: PromptTokenizer,
    prompt: str,
    tokens: Sequence[int],
    number: int | None,
) -> int:
    """Continue one prompt `arguments.samples` times in a batch, and write the texts; returns the number of new tokens.

    `number`: of the prompt, in the lines above the texts; None if it is the only one.
    """
    import torch

    from stages.lib.model import generation

    rows = range(arguments.samples)
    titled = number is not None or len(rows) > 1
    beginnings = [f"--- prompt {number or 1}, sample {row + 1} ---\n" * titled + prompt for row in rows]
    output = Output(beginnings, text, tokens if prompt else [])
    sampler = generation.Sampler(arguments.temperature, arguments.top_p, [arguments.seed + row for row in rows])
    batch = torch.tensor([tokens] * len(rows), device=model.head.weight.device)
    room = model.recipe.max_position_embeddings - len(tokens) + 1  # the last token needs no position of its own
    limit = min(arguments.tokens, room)
    for step in generation.continuations(model, batch, limit, sampler, text.ends, text.vocab_size):
        output.add(step)
    if output.running and limit < arguments.tokens:
        logger.info(
            "stopped at the model's last position (max_position_embeddings %s)", model.recipe.max_position_embeddings
        )
    output.finish()
    return output.num_tokens


class Output:
    """Texts that are generated together and written in order: a text waits until the one before it has ended.

    `beginnings`: the beginning of each text. `before`: the ids of the common prompt.
    """

    def __init__(self, beginnings: Sequence[str], text: PromptTokenizer, before: Sequence[int]) -> None:
        from stages.lib.tokenizer.prompt_tokenizer import Stream

        self.waiting, self.streams = list(beginnings), [Stream(text, before) for _ in beginnings]
        self.running, self.current, self.num_tokens = set(range(len(beginnings))), 0, 0
        self._write()

    def add(self, step: Sequence[int | None]) -> None:
        """Add the next token of each text; None ends one."""
        for row in list(self.running):
            token = step[row]
            if token is None:
                self._end(row)
            else:
                self.waiting[row] += self.streams[row].push(token)
                self.num_tokens += 1
        self._write()

    def finish(self) -> None:
        """End all texts."""
        for row in list(self.running):
            self._end(row)
        self._write()

    def _end(self, row: int) -> None:
        self.waiting[row] += self.streams[row].finish() + "\n"
        self.running.remove(row)

    def _write(self) -> None:
        while self.current < len(self.waiting):
            sys.stdout.write(self.waiting[self.current])
            self.waiting[self.current] = ""
            if self.current in self.running:
                break
            self.current += 1
        sys.stdout.flush()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the tool; returns its exit code."""
    parser = stage.parser("tools.generate", __doc__)
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="PATH", help="the model: see above")
    add("--prompt", action="append", default=[], metavar="TEXT", help="a text to continue; may be given several times")
    add("--prompt-file", action="append", default=[], type=Path, metavar="FILE", help="a UTF-8 file with a prompt")
    add("--tokens", type=int, default=128, metavar="N", help="maximum number of new tokens (default: 128)")
    add("--temperature", type=float, default=0.8, metavar="T", help="0 takes the most probable token (default: 0.8)")
    add(
        "--top-p",
        type=float,
        default=0.95,
        metavar="P",
        help="draw from the most probable tokens of total probability P (default: 0.95)",
    )
    add("--seed", type=int, default=0, metavar="S", help="the same seed gives the same text (default: 0)")
    add("--samples", type=int, default=1, metavar="K", help="number of texts per prompt (default: 1)")
    add("--device", choices=("cpu", "cuda"), help="device (default: cuda if there is a GPU)")
    add("--dtype", choices=("float32", "bfloat16"), default="float32", help="dtype of the weights (default: float32)")
    add("--chat", action="store_true", help="hold a conversation, see above")
    add("--system", metavar="TEXT", help="with --chat: the system prompt")
    add("--template", metavar="NAME|FILE", help="with --chat: chatml, tulu or a file, not the model's template")
    add("--tokenizer", type=Path, metavar="MANIFEST", help="the tokenizer, if it is not found automatically")
    add("--base", type=Path, metavar="PATH", help="the base of a checkpoint of LoRA, if it was moved")
    return stage.execute(parser, run, argv)


if __name__ == "__main__":
    stage.leave(main())
