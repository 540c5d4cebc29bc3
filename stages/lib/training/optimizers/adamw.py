"""AdamW (arXiv 1711.05101): torch's fused kernels, and one whose moments or weights are bfloat16."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import torch

from stages.lib.distributed import collectives, gpus
from stages.lib.model.initialize import mixed_seed
from stages.lib.training.optimizers.optimizer import scale_gradients
from stages.lib.training.optimizers.recipe import OptimizerRecipe

CACHED, ON_GPU = 1 << 18, 1 << 24
"""Elements that are updated at a time by several kernels: on the CPU what its caches hold, on a GPU enough for fast
kernels."""

MOMENTS = ("exp_avg", "exp_avg_sq")


class RoundedAdamW(torch.optim.Optimizer):
    """AdamW whose moments, weights or both are bfloat16. State keys and groups are those of torch.optim.AdamW.

    Its numbers are computed in float32, or wider if the weights are. New moments are rounded to the nearest bfloat16,
    new weights up or down by chance: a weight moves by its update on average, though most updates are smaller than its
    last bit. On a GPU one kernel reads and writes each number once; elsewhere the fused step of torch.optim.AdamW takes
    a part of a parameter at a time, so that the memory beside the state is some copies of such a part.
    `found_inf`: a float tensor of one element on the parameters' device, or None. If it is 1.0, `step` changes
    nothing; the host does not wait for it.
    """

    found_inf: torch.Tensor | None
    scale: torch.Tensor | None

    def __init__(
        self,
        groups: list[dict[str, Any]],
        lr: float,
        betas: tuple[float, float],
        eps: float,
        state_dtype: torch.dtype | None,
        names: Mapping[torch.nn.Parameter, str],
    ) -> None:
        """`state_dtype`: that of the moments, None for float32 or the parameters' own if it is wider.

        `names`: those of the parameters, on which the rounding of weights in bfloat16 depends.
        """
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})
        self.found_inf = self.scale = None
        self.state_dtype = state_dtype
        self._keys = {parameter: _rounding_key(name, parameter) for parameter, name in names.items()}

    def scale_gradients(self, scale: torch.Tensor) -> None:
        """Let the next step multiply the gradients by `scale`, a float64 scalar."""
        self.scale = scale

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update the parameters that have a gradient, and their state."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not parameters:
                continue
            for parameter in parameters:
                if not self.state[parameter]:
                    self.state[parameter] = self.empty_state(parameter)
            steps = [self.state[parameter]["step"] for parameter in parameters]
            torch._foreach_add_(steps, 1)
            for parameter, numbers in zip(parameters, self._numbers(parameters, steps, group), strict=True):
                self._update(parameter, numbers, group)
            if self.found_inf is not None:
                torch._foreach_sub_(steps, [self.found_inf] * len(steps))
        self.scale = None

    def _numbers(
        self, parameters: list[torch.nn.Parameter], steps: list[torch.Tensor], group: dict[str, Any]
    ) -> torch.Tensor:
        """Return the numbers of each parameter's update, int32 [parameters, 4]: see `formula`; floats by their bits.

        They are computed for all parameters at once, and a row is 16 bytes, as kernels want their inputs aligned.
        """
        stacked, (beta1, beta2) = torch.stack(steps), group["betas"]
        keys = torch.stack([self._keys[parameter] for parameter in parameters])
        rates = torch.full_like(stacked, group["lr"])
        floats = (rates / (1 - beta1**stacked), (1 - beta2**stacked).sqrt(), rates)
        key = (stacked.to(torch.int64) * STEP + keys).to(torch.int32)
        return torch.stack([*(number.view(torch.int32) for number in floats), key], 1)

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return zero_state(parameter, self._dtype_of_state(parameter))

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return len(MOMENTS) * self._dtype_of_state(parameter).itemsize

    def _dtype_of_state(self, parameter: torch.Tensor) -> torch.dtype:
        return self.state_dtype or torch.promote_types(parameter.dtype, torch.float32)

    def _update(self, parameter: torch.nn.Parameter, numbers: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        assert parameter.grad is not None
        gradient = collectives.local_tensor(parameter.grad).reshape(-1)
        changed = (parameter, *(state[name] for name in MOMENTS))
        # `view`, which fails where `reshape` would copy, and the update would be lost
        weight, first, second = (collectives.local_tensor(tensor).view(-1) for tensor in changed)
        if has_fused_kernel(parameter):
            fused(gradient, weight, first, second, numbers, group, self.scale, self.found_inf)
        else:
            by_parts(gradient, weight, first, second, state["step"], numbers[3], group, self.scale, self.found_inf)


INDEX, STEP = 0x9E3779B9, 0x85EBCA6B
"""Odd factors that spread the number of an element, and that of a step, over 32 bits."""


def _rounding_key(name: str, parameter: torch.Tensor) -> torch.Tensor:
    """Return 32 bits, as an int64 scalar, on which the rounding of this rank's shard of a parameter depends."""
    first_element = collectives.local_rows(parameter)[1] * math.prod(parameter.shape[1:])
    key = mixed_seed(0, f"rounding {name}", 0) + first_element * INDEX
    return torch.tensor(key & 0xFFFFFFFF, device=parameter.device)


def round_by_chance(values: torch.Tensor, key: torch.Tensor, start: int = 0) -> torch.Tensor:
    """Return float32 `values` [N] as bfloat16, rounded up or down so that the mean over keys is the value.

    A value that bfloat16 has stays as it is. `key`: int32 scalar. `start`: number of the first element. The bits depend
    on key, number and value alone, on every device.
    """
    x = torch.arange(start, start + len(values), dtype=torch.int32, device=values.device) * _signed(INDEX) + key
    # the "lowbias32" mixer of Wellons' hash prospector; a mask makes a shift of signed numbers logical
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * _signed(0x846CA68B)
    bits = values.view(torch.int32) + (x >> 16 & 0xFFFF)
    return (bits & -0x10000).view(torch.float32).bfloat16()


def _signed(number: int) -> int:
    return number - (1 << 32)


def has_fused_kernel(parameter: torch.Tensor) -> bool:
    """Return true if `fused` is compiled for a parameter: on a GPU, where Triton finds a C compiler."""
    return parameter.device.type == "cuda" and parameter.dtype != torch.float64 and gpus.can_compile()


def fused(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    numbers: torch.Tensor,
    group: dict[str, Any],
    scale: torch.Tensor | None,
    found_inf: torch.Tensor | None,
) -> None:
    """Update a weight and its moments, [N] each, as `by_parts` does but for rounding, by one compiled kernel."""
    if not len(weight):  # a rank may have no rows
        return
    scale = torch.ones((), device=weight.device) if scale is None else scale.float()
    found_inf = torch.zeros((), device=weight.device) if found_inf is None else found_inf
    compiled()(
        *(gradient, weight, first, second, numbers, scale, found_inf),
        *(*group["betas"], group["eps"], group["weight_decay"]),
    )


@functools.cache
def compiled() -> Any:
    """Return `formula`, compiled for any number of elements."""
    return torch.compile(formula, dynamic=True)


def formula(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    numbers: torch.Tensor,
    scale: torch.Tensor,
    found_inf: torch.Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
) -> None:
    """The update of `fused`. All that changes from step to step is a tensor, so that it is compiled once.

    `numbers`: int32 [4], the bits of three floats: the learning rate over the correction of the first moment, the root
    of that of the second, the learning rate; then the key of the rounding. A power per element would take longer than
    its bytes.
    """
    corrected_rate, root, rate = numbers[:3].view(torch.float32).unbind()
    scaled = gradient.float() * scale
    new_first = first.float().lerp(scaled, 1 - beta1)
    new_second = second.float() * beta2 + scaled * scaled * (1 - beta2)
    change = corrected_rate * new_first / (new_second.sqrt() / root + eps)
    new = weight.float() * (1 - rate * weight_decay) - change
    if weight.dtype == torch.bfloat16:
        new = round_by_chance(new, numbers[3])  # type: ignore[assignment]
    for old, changed in ((weight, new), (first, new_first), (second, new_second)):
        old.copy_(torch.where(found_inf == 1, old, changed.to(old.dtype)))


def by_parts(
    gradient: torch.Tensor,
    weight: torch.Tensor,
    first: torch.Tensor,
    second: torch.Tensor,
    step: torch.Tensor,
    key: torch.Tensor,
    group: dict[str, Any],
    scale: torch.Tensor | None,
    found_inf: torch.Tensor | None,
) -> None:
    """Update a weight and its moments, [N] each, by torch's fused step on copies of a part at a time.

    `step`: the number of this step, from 1. `key`: of `round_by_chance`, for a weight in bfloat16. `scale`: of
    the gradient.
    """
    precision = torch.promote_types(weight.dtype, torch.float32)
    beta1, beta2 = group["betas"]
    size = CACHED if weight.device.type == "cpu" else ON_GPU
    parts = zip(*(tensor.split(size) for tensor in (gradient, weight, first, second)), strict=True)
    for number, part in enumerate(parts):
        wide = [tensor.to(precision) for tensor in part]
        if scale is not None:
            wide[0] = wide[0] * scale.to(precision)
        torch._fused_adamw_(
            *([wide[1]], [wide[0]], [wide[2]], [wide[3]], [], [step]),
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
            found_inf=found_inf,
        )
        if weight.dtype == torch.bfloat16:
            wide[1] = round_by_chance(wide[1], key, number * size)
        for old, new in zip(part[1:], wide[1:], strict=True):
            if old is not new:
                old.copy_(new)


class AdamW(torch.optim.AdamW):
    """torch's AdamW. Its fused `step` reads `found_inf` and `grad_scale`, which GradScaler sets too."""

    def scale_gradients(self, scale: torch.Tensor) -> None:
        """Multiply the gradients by `scale`, a float64 scalar: on a GPU in the next step."""
        if scales_in_step(self.param_groups[0]["params"][0]):
            self.grad_scale = scale.reciprocal().float()
        else:
            scale_gradients(self, scale)

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""
        return zero_state(parameter, parameter.dtype)

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
        return len(MOMENTS) * parameter.element_size()


def scales_in_step(parameter: torch.Tensor) -> bool:
    """Return true if torch's fused step scales the gradients itself, by a float32 number."""
    return parameter.device.type == "cuda" and parameter.dtype != torch.float64


def build(
    groups: list[dict[str, Any]], recipe: OptimizerRecipe, names: Mapping[torch.nn.Parameter, str]
) -> AdamW | RoundedAdamW:
    """Build AdamW over parameter groups. `names`: those of the parameters."""
    options: dict[str, Any] = {"lr": recipe.learning_rate, "betas": (recipe.beta1, recipe.beta2), "eps": recipe.eps}
    is_rounded = any(parameter.dtype == torch.bfloat16 for group in groups for parameter in group["params"])
    state_dtype = torch.bfloat16 if recipe.state_dtype == "bfloat16" else None
    if state_dtype is None and not is_rounded:
        return AdamW(groups, **options, fused=True)
    return RoundedAdamW(groups, **options, state_dtype=state_dtype, names=names)


def zero_state(parameter: torch.Tensor, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return a step count of 0, and moments of zeros in the parameter's shape and sharding."""
    zeros = {moment: torch.zeros_like(parameter, dtype=dtype).detach() for moment in MOMENTS}
    return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **zeros}
