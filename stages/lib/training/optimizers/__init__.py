"""Optimizers, one file each, and their registry; the learning-rate schedules and gradient clipping.

    registry.py     builds the optimizer that a recipe names; an optimizer of matrices beside AdamW of the rest
    optimizer.py    the interface of an optimizer; groups with and without weight decay; gradient clipping
    recipe.py       the keys of the recipe
    adamw.py        AdamW: torch's fused kernels, also with moments in bfloat16 (state_dtype: bfloat16)
    muon.py         Muon for the matrices of layers, and its orthogonalization
    normuon.py      NorMuon: Muon with rows that change alike
    schedule.py     learning-rate schedules

A new optimizer is a file with a class and a function that builds it, an entry in the registry, and its name in the
recipe. The class extends torch.optim.Optimizer, and

- `step()` changes nothing if the attribute `found_inf`, a float tensor of one element, is 1.0; the host does not wait
  for it;
- `empty_state(parameter)` returns the state before the first step, with the keys, shapes and dtypes of later states;
- `state_bytes(parameter)` returns the bytes of state per element of a parameter.
"""
