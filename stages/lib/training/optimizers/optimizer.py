"""The interface of an optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import torch


class Optimizer(Protocol):
    """The interface of an optimizer, see the package's docstring."""

    param_groups: list[dict[str, Any]]
    state: Any
    found_inf: torch.Tensor | None

    def step(self) -> None:
        """Update the parameters and their state."""

    def zero_grad(self) -> None:
        """Drop the gradients."""

    def empty_state(self, parameter: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return the state of a parameter before its first step."""

    def state_bytes(self, parameter: torch.Tensor) -> int:
        """Return the bytes of state per element of a parameter."""
