"""MKL's vector functions are first called on one number. Their race itself is too rare to be shown by a test."""

from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from stages.lib import vector_math

LIBRARY = Path(__file__).resolve().parents[3] / "stages/lib"


class Recorder(TorchDispatchMode):
    """Keeps what is called: [(function, dtype, number of values)]."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if torch.is_tensor(arguments[0]):
            self.called.append((function._opname, arguments[0].dtype, arguments[0].numel()))
        return function(*arguments, **options or {})


def test_each_function_is_called_on_one_number():
    names = ("cos", "sin", "exp", "log", "sqrt", "tanh")
    with Recorder() as recorder:
        vector_math.choose_kernels()
    assert recorder.called == [(name, dtype, 1) for dtype in (torch.float32, torch.float64) for name in names]


@pytest.mark.parametrize("module", ["model/transformer.py", "scoring/harness_model.py"])
def test_a_module_with_models_calls_them_on_import(module):
    assert "\nvector_math.choose_kernels()\n" in (LIBRARY / module).read_text(encoding="utf-8")
