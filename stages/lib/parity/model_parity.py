"""The checks of an exported model, in their order, and their entries in parity.json; among them block by block.

Block by block, memory is that of a few layers at any size. transformers runs its own forward pass over a model without
weights: a block's weights are read from the export before it runs, and dropped after it. Our block gets the same input,
and the checkpoint's weights, rounded as exported. The outputs of both, and of the norms, attention, MLP and router in
them, are compared in float32: a mistake is named where it is, and rounding does not add up over the blocks.

Where two experts are equally likely, rounding decides which one a token passes through. Such tokens are counted, and
their MLP is not compared; that the router agrees was found before.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn import functional

from stages.lib import space
from stages.lib.huggingface import export
from stages.lib.model.experts import choice_margins, router_probabilities
from stages.lib.model.key_table import Weight
from stages.lib.model.transformer import Transformer
from stages.lib.parity import parity, tensor_parity
from stages.lib.parity.parity import LogitFigures, ParityError
from stages.lib.parity.tensor_parity import Export, Tensors, empty_exported
from stages.lib.render.terminal import Progress

if TYPE_CHECKING:
    from stages.lib.tokens.corpus import Corpus


ROUTER = "ff_sub_layer.gate"
"""Our router within a block."""

TIE = 1e-4
"""Difference of two probabilities of a router that rounding may turn round."""

HEAD_TOKENS = 64
"""Tokens whose logits are computed at a time."""

Run = Callable[[nn.Module, torch.Tensor], Any]
"""A function that calls one of our modules with its input."""


@torch.inference_mode()
def compare_blocks(
    export: Export, tokens: torch.Tensor, tolerance: float, num_layers: int | None = None
) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """Compare the blocks and the last norm; returns (figures, our last hidden states [B, L, D], transformers').

    `tokens`: int64 [B, L]. `tolerance`: the largest difference of outputs, relative to their standard deviation.
    `num_layers`: run the first ones only. Raises ParityError naming the first block and module that differ.
    """
    table, theirs = export.table, empty_exported(export.directory, num_layers)
    pairs = _Pairs(export, tokens.shape[1], tolerance)
    layers = list(zip(table.layers, table.layer_modules, strict=True))[:num_layers]
    (norm,) = table.final_norm.part_shapes()
    with contextlib.ExitStack() as stack:
        for number, (group, name) in enumerate(layers):
            stack.enter_context(pairs.watch(theirs, name, group, f"layer {number}", pairs.run_block))
        if num_layers is None:
            stack.enter_context(_shown([theirs.get_submodule(name) for _, name in layers]))
        name = norm.removesuffix(".weight")
        stack.enter_context(pairs.watch(theirs, name, [table.final_norm], "the last norm", nn.Module.__call__))
        last = theirs.base_model(inputs_embeds=_embedded(export, tokens), use_cache=False).last_hidden_state
    figures = {"layers": len(layers), "tokens": tokens.numel(), "max_difference": pairs.largest}
    figures |= {"num_rounding": pairs.num_rounding}
    figures |= {} if export.model_config.router is None else {"num_router_ties": pairs.num_ties}
    return figures, pairs.last, last


@contextlib.contextmanager
def _shown(blocks: Sequence[nn.Module]) -> Iterator[None]:
    """Show how many blocks ran, and were compared by hooks that were registered before."""
    progress = Progress("layers compared", len(blocks))
    with contextlib.ExitStack() as hooks:
        for block in blocks:
            hooks.callback(block.register_forward_hook(lambda *_: progress.advance()).remove)
        yield


def _embedded(export: Export, tokens: torch.Tensor) -> torch.Tensor:
    """The embeddings of tokens, float32 [B, L, D]; those of all others are compared, too."""
    (weight,) = export.compared([export.table.embedding], "the embedding")[1].values()
    return functional.embedding(tokens, weight).float()


@torch.inference_mode()
def compare_head(export: Export, ours: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> dict[str, Any]:
    """Compare the head, and the logits of last hidden states [B, L, D]; returns the figures of the logits.

    Raises ParityError if they differ by more than `tolerance`, see LogitFigures.
    """
    weight = export.table.embedding if export.table.tied else export.table.head
    (head,) = export.compared([weight], "the head")[1].values()
    head = head.float()
    figures = LogitFigures()
    rows = (states.flatten(0, 1).split(HEAD_TOKENS) for states in (ours, theirs))
    for a, b in zip(*rows, strict=True):
        figures.add(functional.linear(a, head), functional.linear(b, head))
    found = figures.of(tolerance)
    if not found["max_difference"] <= found["allowed"]:
        raise ParityError("logits differ by {max_difference:.3g}, allowed {allowed:.3g}: the head".format(**found))
    return found


class _Pairs:
    """Our modules beside transformers'. `largest`: of all differences, relative to the outputs' standard deviations."""

    def __init__(self, export: Export, length: int, tolerance: float) -> None:
        self.export, self.tolerance = export, tolerance
        with torch.device("meta"):
            self.ours = Transformer(export.model_config, export.vocab_size)
        self.rotation = self.ours.base_model.rotation(torch.arange(length), torch.device("cpu"))
        self.largest, self.num_rounding, self.num_ties = 0.0, 0, 0
        self.last = torch.empty(0)

    def run_block(self, block: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """Call a block; the angles have its input's precision."""
        cosine, sine = (table.to(x.dtype) for table in self.rotation)
        return block(x, cosine, sine, self.ours.base_model.mask(x))

    @contextlib.contextmanager
    def watch(self, model: nn.Module, name: str, group: Sequence[Weight], label: str, run: Run) -> Iterator[None]:
        """Give module `name` of transformers' model its weights when it runs, and compare its outputs with ours."""
        theirs = model.get_submodule(name)
        ours_name = os.path.commonprefix([weight.key for weight in group]).rpartition(".")[0]  # the innermost with all
        ours = self.ours.get_submodule(ours_name)
        modules = _modules(group, ours_name, parity.owners(model, name))

        def load(_module: nn.Module, _arguments: Any) -> None:
            of_ours, of_theirs = self.export.compared(group, label)
            state = {key.removeprefix(f"{ours_name}."): tensor.float() for key, tensor in of_ours.items()}
            ours.load_state_dict(state, assign=True)
            parity.fill(model, of_theirs)

        def compare(_module: nn.Module, arguments: tuple[torch.Tensor, ...], _output: Any) -> None:
            self._compare(ours, arguments[0], run, outputs, modules, label)
            for module in (ours, theirs):
                module.to("meta")
            outputs.clear()
            space.trim_memory()

        with contextlib.ExitStack() as hooks:
            hooks.callback(theirs.register_forward_pre_hook(load).remove)
            outputs = hooks.enter_context(_captured(theirs, list(modules.values())))
            hooks.callback(theirs.register_forward_hook(compare).remove)  # runs after those that capture
            yield

    def _compare(
        self, ours: nn.Module, x: torch.Tensor, run: Run, theirs: Tensors, modules: dict[str, str], label: str
    ) -> None:
        found = _outputs(ours, run, x, list(modules))
        exact = functools.cache(lambda: _outputs(ours.double(), run, x.double(), list(modules)))
        compared = torch.ones(x.shape[:-1], dtype=torch.bool)  # all tokens
        for ours_name, name in modules.items():
            a, b = found[ours_name][compared], theirs[name].view_as(found[ours_name])[compared]
            std = float(a.std(correction=0))
            entry = functools.partial(_entry, exact, ours_name, compared)
            difference = parity.compare_rounding(a, b, self.tolerance * std, entry)
            if not difference.passed:
                where = f"{label}, first in {name}," if name else label
                raise ParityError(
                    f"the outputs of {where} differ by {difference.largest:.3g}, allowed {difference.allowed:.3g}"
                )
            self.largest = max(self.largest, difference.largest / std if std else 0.0)
            self.num_rounding += difference.is_rounding
            if ours_name == ROUTER:
                compared = self._have_one_choice(a, b).view_as(compared)
                self.num_ties += int((~compared).sum())
                if not compared.any():
                    raise ParityError(f"the experts of {label} cannot be compared: all are equally likely")
        self.last = found[""]

    def _have_one_choice(self, ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        """True for tokens whose experts rounding does not decide, by both logits [tokens, E]: bool [tokens]."""
        router = self.export.model_config.router
        assert router is not None
        count, both = router.experts_per_token, [router_probabilities(logits) for logits in (ours, theirs)]
        chosen = [probabilities.topk(count).indices.sort().values for probabilities in both]
        return (chosen[0] == chosen[1]).all(-1) & (choice_margins(both[0], count) > TIE)


def _entry(outputs: Callable[[], Tensors], name: str, tokens: torch.Tensor) -> torch.Tensor:
    return outputs()[name][tokens]


def _modules(group: Sequence[Weight], ours: str, owners: dict[str, str]) -> dict[str, str]:
    """{module in ours: module in transformers'} that have the same weights, in their order, and "" for the whole.

    `owners`: of `parity.owners`.
    """
    children = {}
    for weight in group:
        key = weight.key.removeprefix(f"{ours}.")
        if key == "weight":
            continue
        owner = owners[weight.parts[0].name]
        if key.startswith(f"{ROUTER}."):
            children[ROUTER] = f"{owner}.gate"
        children[key.split(".")[0]] = owner
    return children | {"": ""}


def _outputs(module: nn.Module, run: Run, x: torch.Tensor, names: Sequence[str]) -> Tensors:
    with _captured(module, names) as outputs:
        run(module, x)
    return outputs


@contextlib.contextmanager
def _captured(module: nn.Module, names: Sequence[str]) -> Iterator[Tensors]:
    """{name: output} of modules inside of `module`, filled when they run; "" is itself."""
    outputs: Tensors = {}

    def capture(name: str) -> Callable[..., None]:
        def hook(_module: nn.Module, _arguments: Any, output: Any) -> None:
            outputs[name] = output[0] if isinstance(output, tuple) else output

        return hook

    with contextlib.ExitStack() as hooks:
        for name in names:
            hooks.callback(module.get_submodule(name).register_forward_hook(capture(name)).remove)
        yield outputs


WHOLE_TOKENS = 512
"""Tokens of the row on which whole models are compared."""


def compare(exported: Export, corpus: Corpus, tolerance: float, whole: bool) -> tuple[dict[str, Any], torch.Tensor]:
    """Compare the export with the checkpoint on tokens of the corpus; returns (entries of parity.json, greedy text).

    Every block runs on a few short rows, the first one also on a row as long as the context: what depends on the
    position, RoPE's angles, is the same in all blocks. `whole`: run the whole models, too, which holds both in memory;
    without it, logits are those of the head over the blocks' last outputs, and the greedy text is empty.

    Raises ParityError naming what differs first.
    """
    context = exported.model_config.max_position_embeddings
    tensor_parity.compare_names(exported)
    rows = parity.rows(corpus, context)
    long_row = parity.long_row(corpus, context)
    first, *_ = compare_blocks(exported, long_row, tolerance, num_layers=1)
    blocks, ours, theirs = compare_blocks(exported, rows, tolerance)
    logits = compare_head(exported, ours, theirs, tolerance)
    report = {"checks": ["tensors", "blocks", "head"], "first_block": first, "blocks": blocks, "logits": logits}
    if not whole:
        return report, torch.empty(0, 0, dtype=torch.int64)
    logits, text = _compare_whole(exported, corpus, long_row[:, :WHOLE_TOKENS], tolerance)
    return report | {"checks": [*report["checks"], "whole model", "greedy text"], "logits": logits}, text


def _compare_whole(
    exported: Export, corpus: Corpus, row: torch.Tensor, tolerance: float
) -> tuple[dict[str, Any], torch.Tensor]:
    """The figures of the logits, and the greedy text of transformers' model."""
    ours, theirs = _load_ours(exported), parity.load_exported(exported.directory)
    logits = parity.compare_logits(ours, theirs, [row[:, :1], row], tolerance)  # one token has kernels of its own
    prompts = parity.prompts(corpus, exported.model_config.max_position_embeddings, parity.NEW_TOKENS)
    return logits, parity.compare_text(ours, theirs, prompts, max(logits["allowed"], logits["max_difference"]))


def _load_ours(exported: Export) -> Transformer:
    """Our own model with the weights as exported."""
    model_config, vocab_size = exported.model_config, exported.vocab_size
    with torch.device("meta"):
        ours = Transformer(model_config, vocab_size)
    state = export.rounded_state(model_config, vocab_size, exported.read, exported.dtype)
    ours.load_state_dict(state, assign=True)
    return ours
