"""Gradients of a model of transformers in our layout, to compare with ours."""

import torch

from stages.lib.checkpoints import find_model


def check_equal(ours, theirs, directory, dtype):
    """Check that the gradients of our model are those of a model of transformers within 1e-5 of the largest.

    `directory`: a new one. Reading an export whose weights are gradients gives these in our layout.
    """
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(parameter.grad)
    theirs.save_pretrained(directory)
    expected = find_model.load(find_model.find(directory), dtype, "cpu").state_dict()
    for name, parameter in ours.named_parameters():
        scale = expected[name].abs().max()
        assert scale > 0, name
        assert (parameter.grad - expected[name]).abs().max() < 1e-5 * max(1, scale), name
