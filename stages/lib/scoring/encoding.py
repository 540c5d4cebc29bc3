"""The encoding of lm-evaluation-harness's texts as token ids, the same for every backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jinja2
from lm_eval import utils
from lm_eval.api.model import TemplateLM

from stages.lib.chat.template import guarded_transformers
from stages.lib.errors import UserError
from stages.lib.scoring import loglikelihood
from stages.lib.scoring.loglikelihood import Ids
from stages.lib.tokenizer.prompt_tokenizer import first_token
from stages.lib.tokenizer.tokenizer import library_errors

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class TaskError(UserError):
    """A task cannot be scored, while others can: one sentence that names it."""


Request = tuple[Any, list[int], list[int]]
"""Of the harness: (texts, ids of the context, ids of the continuation)."""


def prefix_of(tokenizer: Mapping[str, Any]) -> int:
    """Return the id that stands before an empty context: `prefix`, else BOS if texts begin with it, else EOS.

    `tokenizer`: as of a ScoredModel.
    """
    return tokenizer.get("prefix", first_token(tokenizer))


class Encoding(TemplateLM):
    """A model of the harness with our encoding. It stands before the class of the harness that computes."""

    separate = False
    """As local tasks need it: context and continuation are encoded one by one, not together as the harness does. With
    `harness_model` a generated text that EOS ended has END behind it."""

    window: int
    """The longest input, in tokens: a context with all but the last token of its continuation."""

    add_bos_token: bool | None

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **options: Any) -> list[int]:
        """Return the ids of a text; arguments as of the harness."""
        with library_errors(f"the text {string[:60]!r} of a task cannot be encoded by the model's tokenizer"):
            return super().tok_encode(string, add_special_tokens=add_special_tokens, **options)

    def _encode_pair(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        if not self.separate:
            return super()._encode_pair(context, continuation)
        first = self.tok_encode(context, add_special_tokens=self.add_bos_token)
        return first, self.tok_encode(continuation, add_special_tokens=False)

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Return the text of a question in the model's chat template, rendered within limits.

        The harness tries a second time without system messages. Raises UserError if that fails too.
        """
        try:
            with guarded_transformers():
                return super().apply_chat_template(chat_history, add_generation_prompt)
        except (jinja2.TemplateError, ValueError) as error:  # ValueError: the template leaves out the last message
            reason = " ".join(str(error).split())
            raise UserError(f"the model's chat template cannot render a question: {reason:.300}") from None

    def ids_of(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """Return the ids of a context, and of what is scored after it."""
        if context:
            return self._encode_pair(context, continuation)
        # as in the harness: a continuation that begins with the prefix has it as context
        ids = self.tok_encode(continuation, add_special_tokens=False)
        prefix = [self.prefix_token_id]
        return (ids[:1], ids[1:]) if ids[:1] == prefix else (prefix, ids)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """Return the log-likelihood of each continuation after its context, and if it is the most likely one.

        Raises TaskError for a continuation that cannot be scored, before the model is called.
        """
        encoded = []
        for request in requests:
            context, continuation = request.args
            first, second = self.ids_of(context, continuation)
            choice = f"choice {request.idx} ({continuation[:100]!r})"
            where = f"task {request.task_name}: {choice} of document {request.doc_id}"
            if not second:
                reason = (
                    f"no token of its own after {context[-40:]!r}: the tokenizer joins both; let a token end where the "
                    "question does, for example by target_delimiter"
                )
                raise TaskError(f"{where} has {reason if continuation else 'no text'}")
            if len(second) > self.window:
                raise TaskError(
                    f"{where} must have at most {self.window} tokens, the context that the model is scored with, and "
                    f"has {len(second)}"
                )
            encoded.append(((context, continuation), first, second))
        return self._loglikelihood_tokens(encoded)

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """Return the log-likelihood of each whole text, in windows of the context."""
        of_text, windows = [], []
        for number, request in enumerate(requests):
            # BOS, which stands before each text, is the first window's context: the tokenizer must not add another
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in utils.get_rolling_token_windows(ids, self.prefix_token_id, self.window, context_len=1):
                of_text.append(number)
                windows.append((None, *utils.make_disjoint_window(window)))
        totals = [0.0] * len(requests)
        for number, (value, _) in zip(of_text, self._loglikelihood_tokens(windows), strict=True):
            totals[number] += value
        return totals

    def fitted(self, requests: Sequence[Request]) -> list[tuple[Ids, Ids]]:
        """Return (context, continuation) of each request, with the end of the context that the model can see."""
        return [
            loglikelihood.fit(context or [self.prefix_token_id], continuation, self.window)
            for _, context, continuation in requests
        ]
