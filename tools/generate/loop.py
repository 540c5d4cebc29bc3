"""The loop of a conversation: a line of the user, the model's answer while it is generated, and so on."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.lib.errors import UserError
from stages.lib.log import logger

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.tokenizer.prompt_tokenizer import PromptTokenizer
    from tools.generate.history import History

PROMPT = "> "


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of all answers. Answer n is drawn with the seed `seed` + n - 1."""

    tokens: int
    temperature: float
    top_p: float
    seed: int


def converse(model: Transformer, text: PromptTokenizer, history: History, sampling: Sampling) -> None:
    """Answer the lines of standard input until it ends (Ctrl-D). Ctrl-C ends an answer, which is kept as it is."""
    number = 0
    for line in _lines():
        try:
            ids, dropped = history.ask(line)
        except UserError as error:
            logger.error("%s", error)
            continue
        if dropped:
            logger.warning("the context is full: the oldest %d messages are dropped", dropped)
        answer = ""
        try:
            for piece in _pieces(model, text, ids, sampling, sampling.seed + number):
                sys.stdout.write(piece)
                sys.stdout.flush()
                answer += piece
        except KeyboardInterrupt:
            pass
        print(flush=True)
        history.answer(answer)
        number += 1


def _lines() -> Iterator[str]:
    """Yield the user's lines that are not blank; PROMPT is shown in a terminal alone. Ctrl-C discards a line."""
    is_terminal = sys.stdin.isatty()
    if is_terminal:
        import readline  # noqa: F401  # arrow keys and the lines before, in input()
    while True:
        try:
            line = input(PROMPT if is_terminal else "")
        except KeyboardInterrupt:
            print()
            continue
        except EOFError:
            print(end="\n" if is_terminal else "")
            return
        except UnicodeDecodeError:
            raise UserError("standard input must be UTF-8") from None
        if line.strip():
            yield line


def _pieces(model: Transformer, text: PromptTokenizer, ids: list[int], sampling: Sampling, seed: int) -> Iterator[str]:
    import torch

    from stages.lib.model import generation
    from stages.lib.tokenizer.prompt_tokenizer import Stream

    stream = Stream(text, ids)
    room = model.recipe.max_position_embeddings - len(ids) + 1  # the last token needs no position of its own
    sampler = generation.Sampler(sampling.temperature, sampling.top_p, [seed])
    batch = torch.tensor([ids], device=model.head.weight.device)
    limit = min(sampling.tokens, room)
    for (token,) in generation.continuations(model, batch, limit, sampler, text.ends, text.vocab_size):
        if token is not None:
            yield stream.push(token)
    yield stream.finish()
