"""Optimizers, one file each, and their registry; the learning-rate schedules and gradient clipping.

    registry.py             builds the optimizer that a recipe names
    optimizer.py            the interface of an optimizer
    recipe.py               the keys of the recipe
    adamw.py                AdamW: torch's fused kernels
    adamw_bf16.py           AdamW with its moments in bfloat16 (state_dtype: bfloat16)
    muon.py                 Muon for the matrices of layers
    newton_schulz.py        its orthogonalization
    layer_matrices.py       the matrices of layers, and the parts of those that are fused
    combined.py             an optimizer of matrices, and AdamW of the rest
    parameter_groups.py     groups with and without weight decay; the learning rate
    found_inf.py            a skipped step
    schedule.py             learning-rate schedules
    gradient_clipping.py    clipping by the global norm

A new optimizer is a file with a class and a function that builds it, an entry in the registry, and its name in the
recipe. The class extends torch.optim.Optimizer, and

- `step()` changes nothing if the attribute `found_inf`, a float tensor of one element, is 1.0; the host does not wait
  for it;
- `empty_state(parameter)` returns the state before the first step, with the keys, shapes and dtypes of later states;
- `state_bytes(parameter)` returns the bytes of state per element of a parameter.
"""
