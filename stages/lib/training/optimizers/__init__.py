"""Optimizers, one file each, and their registry; the learning-rate schedules and gradient clipping.

    registry.py             BUILDERS: name -> builder; builds the optimizer that a recipe names
    recipe.py               the keys of the recipe, and the name that they give
    adamw.py                adamw: torch's fused AdamW
    adamw_bf16.py           adamw_bf16: AdamW with its moments in bfloat16 (state_dtype: bfloat16)
    schedule.py             learning-rate schedules
    gradient_clipping.py    clipping by the global norm

A new optimizer is a file with a class and `build(groups, recipe) -> Optimizer`, a line in BUILDERS, and its name in the
recipe. The class extends torch.optim.Optimizer, and

- `step()` changes nothing if the attribute `found_inf`, a float tensor of one element, is 1.0; the host does not wait
  for it;
- `empty_state(parameter)` returns the state before the first step, with the keys, shapes and dtypes of later states;
- `state_bytes(width)` returns the bytes of state per parameter of `width` bytes.
"""
