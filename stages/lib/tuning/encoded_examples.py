"""Examples to fine-tune on as token ids, of which some are targets.

| example | ids | targets, by `loss_on` |
|---|---|---|
| pair | BOS, prompt, completion, EOS | completion and EOS; with `all` also the prompt |
| conversation | its text by the chat template | the assistant's turns, or the last of them, up to EOS; or all |
| document | BOS, text, EOS | all |

Prompt and completion are encoded separately. In one text, a token may cross the boundary (`"R` in `"Return`), so that
the prompt would end at no token; and at inference a model is given the ids of the prompt alone.

The text of a conversation is encoded as a whole, as `tokenizer.apply_chat_template` encodes it: BOS and EOS stand where
the template writes them. A token of which any character is the assistant's is a target, as in transformers' masks. If
the template writes no EOS after the last turn, one is appended: the model must learn to stop.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stages.lib.chat.messages import REASONING, TOOLS, arguments_of, strings_of
from stages.lib.chat.template import ChatTemplate, Span, assistant_spans
from stages.lib.errors import UserError
from stages.lib.log import logger
from stages.lib.sources.entries import Document
from stages.lib.sources.examples import Conversation, Pair
from stages.lib.tokenizer.tokenizer import Tokenizer

ASSISTANT, ALL, LAST = LOSS_ON = ("assistant", "all", "last")
AT_ONCE = 256  # conversations whose characters are held: 16 bytes per token
SAMPLE = 16
"""Conversations with a key that are rendered without it."""


@dataclass(frozen=True)
class Encoded:
    """An example's ids, int32 [n]; whether each is a target, bool [n]; the bytes of UTF-8 of the targets' text.

    The first id is no target: nothing precedes it. The text of EOS does not count.
    """

    ids: np.ndarray
    is_target: np.ndarray
    num_bytes: int


@dataclass(frozen=True, kw_only=True)
class ExampleEncoder:
    """Encodes the examples of a source. `bos`: pairs and documents begin with BOS, as documents of the corpus do.

    `template`: of conversations.
    """

    tokenizer: Tokenizer
    bos: bool
    template: ChatTemplate | None = None
    loss_on: str = ASSISTANT

    def encode(self, examples: Sequence[Any]) -> list[Encoded]:
        """Return the Encoded of each example that `can_encode`, in order; the others are counted in the log."""
        return self.encode_all(self.encodable([(example,) for example in examples]))

    def encodable(self, groups: Sequence[tuple[Any, ...]]) -> list[Any]:
        """Return the members of groups of which none is a conversation with the text of a special token.

        Such a text would end it. The other groups are counted in the log.
        """
        kept = [group for group in groups if not any(map(self._holds_special, group))]
        if len(kept) < len(groups):
            logger.warning(
                "%s of %s conversations are filtered: they hold the text of a special token (%s)",
                len(groups) - len(kept),
                len(groups),
                ", ".join(self.tokenizer.special_texts()[:4]),
            )
        return [one for group in kept for one in group]

    def _holds_special(self, example: Any) -> bool:
        return isinstance(example, Conversation) and any(
            map(self._special.search, strings_of([*example.messages, *(example.tools or ())]))
        )

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        texts = self.tokenizer.special_texts()
        return re.compile("|".join(map(re.escape, texts)) or "(?!)")  # (?!) matches nothing

    def encode_all(self, examples: Sequence[Any]) -> list[Encoded]:
        """Return the Encoded of each example, in order."""
        found: dict[int, Encoded] = {}
        for kind, method in ENCODERS.items():
            numbers = [number for number, example in enumerate(examples) if isinstance(example, kind)]
            found |= zip(numbers, method(self, [examples[number] for number in numbers]), strict=True)
        return [found[number] for number in range(len(examples))]

    def pairs(self, pairs: Sequence[Pair]) -> list[Encoded]:
        """Return the Encoded of each pair. Raises UserError if no token precedes a completion."""
        names = [pair.id for pair in pairs]
        prompts = self.tokenizer.encode([pair.prompt for pair in pairs], names)
        for pair, prompt in zip(pairs, prompts, strict=True):
            if not (self.bos or len(prompt)):
                raise UserError(
                    f"{pair.id} must have a prompt of at least one token, since no BOS precedes it; got none"
                )
        completions = self.tokenizer.encode([pair.completion for pair in pairs], names)
        return [
            self._of_segments(pair.prompt, pair.completion, prompt, completion)
            for pair, prompt, completion in zip(pairs, prompts, completions, strict=True)
        ]

    def documents(self, documents: Sequence[Document]) -> list[Encoded]:
        """Return the Encoded of each document: all of its text is a target."""
        nothing = np.empty(0, dtype=np.int32)
        texts = [document.text or "" for document in documents]
        found = self.tokenizer.encode(texts, [document.id for document in documents])
        return [self._of_segments("", text, nothing, ids) for text, ids in zip(texts, found, strict=True)]

    def _of_segments(self, prompt: str, text: str, prompt_ids: np.ndarray, text_ids: np.ndarray) -> Encoded:
        """Return BOS, prompt, text and EOS, of which the text and EOS are targets; with ALL all but the first id."""
        first = [self.tokenizer.bos] * self.bos
        ids = np.concatenate([first, prompt_ids, text_ids, [self.tokenizer.eos]]).astype(np.int32)
        begin = 0 if self.loss_on == ALL else len(first) + len(prompt_ids)
        counted = prompt + text if self.loss_on == ALL else text
        return Encoded(ids, np.arange(len(ids)) >= max(1, begin), len(counted.encode()))

    def conversations(self, conversations: Sequence[Conversation]) -> list[Encoded]:
        """Return the Encoded of each conversation."""
        if not conversations:
            return []
        assert self.template is not None
        encoded: list[Encoded] = []
        num_open, eos = 0, self.template.special_tokens["eos_token"]
        self._warn_of_left_out(conversations)
        for begin in range(0, len(conversations), AT_ONCE):
            some = conversations[begin : begin + AT_ONCE]
            rendered = [assistant_spans(self.template, one.messages, one.id, one.first, one.tools) for one in some]
            markup = self.tokenizer.encode_markup([text for text, _ in rendered], [one.id for one in some])
            encoded += [self._of_turns(*one, *found) for one, found in zip(rendered, markup, strict=True)]
            for text, turns in rendered:  # after the last turn of a text EOS is appended
                num_open += sum(eos not in text[begin:end] for begin, end in turns if end < len(text))
        if num_open:
            message = (
                "the chat template writes no EOS after %s turns with messages behind: generation does not stop there"
            )
            logger.warning(message, num_open)
        return encoded

    def _warn_of_left_out(self, conversations: Sequence[Conversation]) -> None:
        """Log how many conversations have a key that does not reach the model: without it their text is the same."""
        having: dict[str, list[Conversation]] = {}
        num_text = 0
        for one in conversations:
            keys = {key for message in one.messages for key in message} - {"role", "content", *REASONING[1:]}
            for key in keys | ({TOOLS} if one.tools else set()):
                having.setdefault(key, []).append(one)
            calls = (call for message in one.messages for call in message.get("tool_calls", ()))
            num_text += any(isinstance(arguments_of(call), str) for call in calls)
        left_out = [
            f"{key} ({len(ones):,})"
            for key, ones in sorted(having.items())
            if not any(self._reads(key, one) for one in ones[:SAMPLE])
        ]
        if left_out:
            logger.warning("keys of conversations that the chat template does not read: %s", ", ".join(left_out))
        if num_text:
            logger.warning("conversations with a call whose arguments are text, no JSON object: %s", f"{num_text:,}")

    def _reads(self, key: str, one: Conversation) -> bool:
        """Return whether a conversation has another text without a key, all names of REASONING for the first."""
        assert self.template is not None
        names = REASONING if key == REASONING[0] else (key,)
        without = [{name: value for name, value in message.items() if name not in names} for message in one.messages]
        try:
            text = self.template.render(one.messages, one.id, tools=one.tools)
            return text != self.template.render(without, one.id, tools=None if key == TOOLS else one.tools)
        except UserError:  # the template needs the key
            return True

    def _of_turns(self, text: str, turns: Sequence[Span], ids: np.ndarray, characters: np.ndarray) -> Encoded:
        """Return the ids of a text, whose targets are its turns: each up to its first EOS."""
        is_target, num_bytes, closed = np.zeros(len(ids), dtype=bool), 0, False
        for number, (begin, end) in enumerate(turns, 1):
            inside = (characters[:, 0] < end) & (characters[:, 1] > begin)
            ends = np.flatnonzero(inside & (ids == self.tokenizer.eos))
            closed = len(ends) > 0 or end < len(text)
            if len(ends):
                inside[ends[0] + 1 :] = False
            if self.loss_on != LAST or number == len(turns):
                is_target |= inside
                stop = int(characters[ends[0], 0]) if len(ends) else end
                num_bytes += len(text[begin:stop].encode())
        if self.loss_on == ALL:
            is_target[:], num_bytes = True, len(text.encode())
        if not closed:
            ids, is_target = np.append(ids, np.int32(self.tokenizer.eos)), np.append(is_target, True)
        is_target[0] = False
        return Encoded(ids, is_target, num_bytes)


ENCODERS: dict[type, Callable[[ExampleEncoder, Sequence[Any]], list[Encoded]]] = {
    Pair: ExampleEncoder.pairs,
    Conversation: ExampleEncoder.conversations,
    Document: ExampleEncoder.documents,
}
"""{type of the examples: the method that encodes them}"""
