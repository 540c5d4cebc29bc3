"""MKL's vector functions are first called on one number. Their race itself is too rare to be shown by a test."""

import json
import subprocess
import sys

import pytest

FUNCTIONS = "cos", "sin", "exp", "log", "sqrt", "tanh"

PROGRAM = """
import importlib, json, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode

class Recorder(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        if function._opname in FUNCTIONS:
            called.append([function._opname, str(arguments[0].dtype), arguments[0].numel()])
        return function(*arguments, **options or {})

FUNCTIONS, called = sys.argv[2:], []
with Recorder():
    importlib.import_module(sys.argv[1])
print(json.dumps(called))
"""


@pytest.mark.parametrize("module", ["stages.lib.model.transformer", "stages.lib.scoring.harness_model"])
def test_a_module_with_models_chooses_the_kernels_on_import(module):
    command = [sys.executable, "-c", PROGRAM, module, *FUNCTIONS]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    expected = [[name, dtype, 1] for dtype in ("torch.float32", "torch.float64") for name in FUNCTIONS]
    assert json.loads(done.stdout) == expected
