"""The loss of fine-tuning on packed conversations, and its gradients, are those of transformers on each by itself."""

import numpy as np
import pytest
import torch

from stages.lib.chat import template as chat_templates
from stages.lib.chat.template import ChatTemplate
from stages.lib.checkpoints import find_model
from stages.lib.sources.examples import Conversation
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.training.objectives.objective import NextToken
from stages.lib.tuning.encoded_examples import ExampleEncoder
from stages.lib.tuning.tuning_samples import TuningSamples, separator
from tests.helpers import evaluations, gradients

SEQ_LEN = 128
TEXTS = (("a b", "c"), ("def f():", "return it", "And now?", "x = 1"), ("def g(n):", "n"))


def chat_of(texts):
    """A conversation of these turns."""
    return [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(texts)]


@pytest.mark.parametrize("name", ["chatml", "tulu"])
def test_loss_and_gradients_of_packed_conversations_are_those_of_transformers(tmp_path, name):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    text = chat_templates.text_of(name, "finetune.template")
    made = evaluations.export(tmp_path / "results", template=text)
    directory, tokenizer = made["--export"].parent, Tokenizer(tmp_path / "results/tokenizers/main/manifest.json")
    encoder = ExampleEncoder(
        tokenizer=tokenizer, bos=True, template=ChatTemplate(text, special_tokens(tokenizer.manifest), name)
    )
    encoded = encoder.encode([Conversation("a", chat_of(texts), "train") for texts in TEXTS])
    end = separator([encoded], tokenizer.eos, tokenizer.vocab_size)
    samples = TuningSamples({"chats": encoded}, {"chats": 1}, SEQ_LEN, 0, end)
    rows = samples.batch(np.arange(samples.samples_per_epoch))
    assert len(rows[0]) < len(TEXTS)  # several in one row

    ours, objective = find_model.load(find_model.find(directory), torch.float64, "cpu"), NextToken()
    for parameter in ours.parameters():
        parameter.requires_grad_()
    total, _ = objective.sums(ours, [torch.from_numpy(array).long() for array in rows], samples.document_end)
    (total / objective.count(rows)).backward()

    theirs = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    exported = AutoTokenizer.from_pretrained(directory)
    sums, targets = torch.zeros((), dtype=torch.float64), 0
    for texts in TEXTS:
        found = exported.apply_chat_template(chat_of(texts), return_dict=True, return_assistant_tokens_mask=True)
        ids, mask = torch.tensor([found["input_ids"]]), torch.tensor([found["assistant_masks"]], dtype=torch.bool)
        count = int(mask[:, 1:].sum())
        sums = sums + theirs(ids, labels=ids.masked_fill(~mask, -100)).loss * count
        targets += count
    (sums / targets).backward()
    assert targets == objective.count(rows)
    assert total.item() / targets == pytest.approx(sums.item() / targets, abs=1e-5)

    gradients.check_equal(ours, theirs, tmp_path / "gradients", torch.float64)
