"""A conversation in the terminal: its history, the chat template, and the loop of questions and answers."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from stages.lib.errors import UserError
from stages.lib.log import logger

if TYPE_CHECKING:
    from stages.lib.model.transformer import Transformer
    from stages.lib.tokenizer.prompt_tokenizer import PromptTokenizer

PROMPT = "> "
Message = dict[str, str]
"""{"role": system, user or assistant; "content": text}"""

SYSTEM, USER, ASSISTANT = "system", "user", "assistant"


class History:
    """The messages of a conversation.

    `encode`: returns the ids of messages, with what comes before an answer. `num_positions`: how many ids fit into the
    model, of which `room` are kept free for the answer. `system`: the system prompt, which is never dropped.
    """

    def __init__(
        self, encode: Callable[[list[Message]], list[int]], num_positions: int, room: int, system: str | None = None
    ) -> None:
        self.encode, self.num_positions, self.room = encode, num_positions, max(1, room)
        self.system = [] if system is None else [{"role": SYSTEM, "content": system}]
        self.turns: list[Message] = []

    def ask(self, text: str) -> tuple[list[int], int]:
        """Add what the user writes; return (ids to continue, number of the oldest messages that were dropped).

        Raises UserError, and forgets the text, if it does not fit alone.
        """
        self.turns.append({"role": USER, "content": text})
        turns = list(self.turns)
        try:
            ids = self.encode(self.system + turns)
            while len(ids) + self.room > self.num_positions and len(turns) > 1:
                # from the second question on
                second = next(number for number, turn in enumerate(turns) if number and turn["role"] == USER)
                turns = turns[second:]
                ids = self.encode(self.system + turns)
            if len(ids) >= self.num_positions:
                raise UserError(
                    f"a message must have at most the model's {self.num_positions} tokens (max_position_embeddings) "
                    f"with its template, and one token must remain for the answer; got {len(ids)}"
                )
        except UserError:
            self.turns.pop()
            raise
        dropped, self.turns = len(self.turns) - len(turns), turns
        return ids, dropped

    def answer(self, text: str) -> None:
        """Add the model's answer to the last question."""
        self.turns.append({"role": ASSISTANT, "content": text})


def encoder(directory: Path, template: str | None, own: str | None) -> Callable[[list[Message]], list[int]]:
    """Return a function from messages to the ids of `apply_chat_template` of the tokenizer that transformers loads.

    `own`: text of the model's chat template. `template`: a shipped one, or a Jinja file, in place of it. Raises
    UserError if there is none, or it is not valid.
    """
    from transformers import AutoTokenizer

    from stages.lib.chat.template import ChatTemplate, text_of

    # markers of a template are tokens, also where a literal </s> in a prompt is only text
    tokenizer = AutoTokenizer.from_pretrained(directory, split_special_tokens=False, trust_remote_code=False)
    text = own if template is None else text_of(template, "--template")
    if not text:
        raise UserError("the model has no chat template, which --chat needs: give --template")
    compiled = ChatTemplate(text, tokenizer.special_tokens_map, template or "of the model", same_text_always=False)

    def encode(messages: list[Message]) -> list[int]:
        for message in messages:
            if special := next((name for name in tokenizer.all_special_tokens if name in message["content"]), None):
                raise UserError(f"a message must not hold the text of a special token, got {special}")
        rendered = compiled.render(messages, "this conversation", generation_prompt=True)
        return list(tokenizer(rendered, add_special_tokens=False)["input_ids"])

    return encode


def converse(model: Transformer, text: PromptTokenizer, history: History, options: argparse.Namespace) -> None:
    """Answer the lines of standard input until it ends (Ctrl-D). Ctrl-C ends an answer, which is kept as it is.

    `options`: tokens, temperature and top_p of all answers. Answer n is drawn with the seed `seed` + n - 1.
    """
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
            for piece in _pieces(model, text, ids, options, options.seed + number):
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


def _pieces(
    model: Transformer, text: PromptTokenizer, ids: list[int], options: argparse.Namespace, seed: int
) -> Iterator[str]:
    import torch

    from stages.lib.model import generation
    from stages.lib.tokenizer.prompt_tokenizer import Stream

    stream = Stream(text, ids)
    room = model.recipe.max_position_embeddings - len(ids) + 1  # the last token needs no position of its own
    sampler = generation.Sampler(options.temperature, options.top_p, [seed])
    batch = torch.tensor([ids], device=model.head.weight.device)
    limit = min(options.tokens, room)
    for (token,) in generation.continuations(model, batch, limit, sampler, text.ends, text.vocab_size):
        if token is not None:
            yield stream.push(token)
    yield stream.finish()
