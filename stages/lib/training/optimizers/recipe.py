"""The recipe of the optimizer."""

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.recipe import identity

BF16_STEP = 2**-8
"""Lower bound of 1 - beta for moments in bfloat16: a smaller relative change may round to nothing."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """AdamW (arXiv 1711.05101)."""

    learning_rate: float = identity(3e-4, above=0)
    """The peak learning rate."""

    beta1: float = identity(0.9, minimum=0, maximum=1)
    """Decay rate of the first moment, the mean of the gradients."""

    beta2: float = identity(0.95, minimum=0, maximum=1)
    """Decay rate of the second moment, the mean of the squared gradients."""

    eps: float = identity(1e-8, above=0)
    """Added to the root of the second moment."""

    weight_decay: float = identity(0.1, minimum=0)
    """Decoupled weight decay of matrices; the vectors of norms do not decay."""

    max_grad_norm: float = identity(1.0, above=0)
    """The largest global gradient norm; longer gradients are scaled down to it."""

    state_dtype: str = identity("float32", choices=("float32", "bfloat16"))
    """Precision of AdamW's two moments. float32: that of the weights (float64 if they are float64). bfloat16: 4 bytes
    per parameter instead of 8, in memory and in checkpoints; updates are computed in float32 and rounded to 8 bits. A
    change of less than 0.4% is then lost: moments follow slowly for betas near 1, and not at all if 1 - beta is at most
    1/256; such betas are refused."""

    def check(self, where: str) -> None:
        """Raise UserError if a moment in bfloat16 would never change."""
        for name in ("beta1", "beta2"):
            beta = getattr(self, name)
            if self.state_dtype == "bfloat16" and 1 - beta <= BF16_STEP:
                raise UserError(
                    f"{where}.{name} must be less than {1 - BF16_STEP:.4f} with state_dtype bfloat16, which would "
                    f"round the changes of a slower moment to nothing, got {beta}"
                )

    @property
    def name(self) -> str:
        """Name in the registry of optimizers."""
        return "adamw_bf16" if self.state_dtype == "bfloat16" else "adamw"
