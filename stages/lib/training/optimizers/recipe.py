"""The recipe of the optimizer."""

from dataclasses import dataclass

from stages.lib.errors import UserError
from stages.lib.recipe import identity

BF16_STEP = 2**-8
"""Lower bound of 1 - beta for moments in bfloat16: a smaller relative change may round to nothing."""


DEFAULT_OPTIMIZER = "adamw"


@dataclass(frozen=True, kw_only=True)
class MuonRecipe:
    """Keys of Muon alone, with the names and defaults of torch.optim.Muon except `adjust_lr_fn`."""

    learning_rate: float | None = identity(None, above=0)
    """The peak learning rate of the layers' matrices. Default: `optimizer.learning_rate`."""

    momentum: float = identity(0.95, minimum=0, maximum=1)
    """Decay rate of the momentum, the mean of the gradients."""

    nesterov: bool = identity(True)
    """Nesterov momentum: the update is that of the gradient and the momentum after it."""

    ns_steps: int = identity(5, minimum=1, maximum=99)
    """Steps of the Newton-Schulz iteration that orthogonalizes the momentum."""

    adjust_lr_fn: str = identity("match_rms_adamw", choices=("match_rms_adamw", "original"))
    """Factor of the learning rate of a matrix [A, B]. match_rms_adamw: 0.2 * sqrt(max(A, B)), which makes an update as
    large as AdamW's, so that one learning rate and weight decay serve both (arXiv 2502.16982). original:
    sqrt(max(1, A / B)), torch's default; for a matrix of 4096 x 4096 it is 13 times smaller, so give Muon a
    `learning_rate` of its own."""


@dataclass(frozen=True, kw_only=True)
class NorMuonRecipe(MuonRecipe):
    """Keys of NorMuon alone: those of Muon, and one more."""

    beta2: float = identity(0.95, minimum=0, maximum=1)
    """Decay rate of the mean square of the update of each row."""


MATRIX_OPTIMIZERS: dict[str, type[MuonRecipe]] = {"muon": MuonRecipe, "normuon": NorMuonRecipe}
"""Optimizers of the matrices of layers, with the recipe of the keys below `optimizer` that have their name."""


@dataclass(frozen=True, kw_only=True)
class OptimizerRecipe:
    """AdamW (arXiv 1711.05101), alone or beside an optimizer of matrices."""

    name: str = identity(DEFAULT_OPTIMIZER, choices=(DEFAULT_OPTIMIZER, *MATRIX_OPTIMIZERS))
    """adamw: AdamW of all parameters. muon: Muon, orthogonalized momentum, of the matrices of the layers, each as
    transformers has it (q, k, v, gate and up apart); AdamW of embedding, head, norms and other vectors. normuon: Muon
    whose updates have rows of about equal size (arXiv 2510.05491)."""

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
    """Precision of AdamW's two moments and of Muon's momentum. float32: that of the weights (float64 if they are
    float64). bfloat16: half of the bytes, in memory and in checkpoints (AdamW: 4 per parameter instead of 8; Muon: 2
    instead of 4); updates are computed in float32 and rounded to 8 bits. A change of less than 0.4% is then lost:
    moments follow slowly for betas near 1, and not at all if 1 - beta is at most 1/256; such betas are refused."""

    muon: MuonRecipe | None = identity(None)
    """Keys of Muon, for name muon only. Default: the defaults of these keys."""

    normuon: NorMuonRecipe | None = identity(None)
    """Keys of NorMuon, for name normuon only. Default: the defaults of these keys."""

    @property
    def of_matrices(self) -> MuonRecipe:
        """The keys of the optimizer of matrices; it has none with name adamw."""
        return getattr(self, self.name) or MATRIX_OPTIMIZERS[self.name]()

    def check(self, where: str) -> None:
        """Raise UserError if a key has no effect, or a moment in bfloat16 would never change."""
        betas = {"beta1": self.beta1, "beta2": self.beta2}
        for name in MATRIX_OPTIMIZERS:
            keys: MuonRecipe | None = getattr(self, name)
            if keys is not None and name != self.name:
                raise UserError(f"{where}.{name} must be left out for name {self.name}; it is for name {name} only")
            if keys is not None:
                betas[f"{name}.momentum"] = keys.momentum
        for name, beta in betas.items():
            if self.state_dtype == "bfloat16" and 1 - beta <= BF16_STEP:
                raise UserError(
                    f"{where}.{name} must be less than {1 - BF16_STEP:.4f} with state_dtype bfloat16, which would "
                    f"round the changes of a slower moment to nothing, got {beta}"
                )

    def check_lora(self, where: str) -> None:
        """Raise UserError if the optimizer is not one for LoRA's adapters."""
        if self.name in MATRIX_OPTIMIZERS:
            raise UserError(
                f"{where}.name must be adamw with lora, got {self.name}: it orthogonalizes updates of whole matrices, "
                "and an adapter is a product of two thin ones"
            )
