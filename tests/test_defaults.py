"""The defaults of all recipes, frozen.

A manifest's identity holds only what differs from a default, so that a new optional key changes no digest. The price: a
default that changes would silently give another meaning to every result and config that leaves the key out.
"""

import pytest
import yaml

from stages.convert import ConvertRecipe
from stages.describe import DescribeRecipe
from stages.evaluate import EvaluateRecipe
from stages.finetune import FinetuneRecipe
from stages.lib import recipe_schema
from stages.lib.contamination.rules import ContaminationRecipe
from stages.lib.sources.source import SourceRecipe
from stages.list_items import ItemsRecipe
from stages.pretrain import PretrainRecipe
from stages.select_best import BestRecipe
from stages.tokenize import TokenizeRecipe
from stages.train_classifier import ClassifierRecipe
from stages.train_tokenizer import TokenizerRecipe

RECIPES = (
    *(SourceRecipe, TokenizerRecipe, TokenizeRecipe, PretrainRecipe, FinetuneRecipe),
    *(ConvertRecipe, EvaluateRecipe, DescribeRecipe),
    *(ItemsRecipe, ContaminationRecipe, BestRecipe, ClassifierRecipe),
)

FROZEN = yaml.safe_load("""
SourceRecipe:
  {paths: [], text_field: text, messages_field: messages, prompt_field: prompt, completion_field: completion,
   chosen_field: chosen, rejected_field: rejected, split_field: null, main_content: true, validation: 0.01,
   token_ids_field: null,
   id_field: null, filters.min_bytes: null, filters.max_bytes: null, filters.min_words: null, filters.max_words: null,
   filters.max_symbols: null, filters.max_repeated_lines: null, filters.gopher_repetition: null,
   filters.gopher_quality: null, filters.c4_quality: null, filters.fineweb_quality: null, filters.languages: null,
   filters.min_language_probability: null, filters.quality: null, filters.custom: null,
   mask: []}
TokenizerRecipe:
  {vocab_size: null, model: bpe, sample: null, sample_mb: 100.0, path: null, bos: null, eos: null,
   fill_in_the_middle: null}
ClassifierRecipe: {ngram_words: 2, num_features: 262144, max_documents: 50000, held_out: 0.1, seed: 0}
TokenizeRecipe:
  {parts: 1, bos: true, duplicates: keep, decontaminate: [], decontaminate_ngram: 13, shuffle_seed: 0}
ItemsRecipe: {include_path: null}
ContaminationRecipe: {rule: gpt3, n: null}
PretrainRecipe: &training
  {seed: 0, dtype: bfloat16, weights_dtype: float32, float8: false, z_loss: 0.0,
   optimizer.name: adamw, optimizer.learning_rate: 0.0003, optimizer.beta1: 0.9, optimizer.beta2: 0.95,
   optimizer.eps: 1.0e-08, optimizer.weight_decay: 0.1, optimizer.max_grad_norm: 1.0, optimizer.state_dtype: float32,
   optimizer.muon: null, optimizer.normuon: null, schedule.kind: cosine, schedule.warmup: linear,
   schedule.warmup_steps: 100, schedule.min_lr_ratio: 0.1, schedule.decay_steps: null, schedule.decay: linear,
   loss_guard.spike: null, loss_guard.window: 128, loss_guard.bad_steps: 10, loss_guard.on_repeated: stop,
   loss_guard.max_rollbacks: 3}
FinetuneRecipe:
  {<<: *training, template: null, loss_on: assistant, packing: best_fit, too_long: drop, lora: null, dpo: null}
ConvertRecipe: {dtype: bfloat16, shard_mb: 1000, tolerance: 0.0001, merge: true, tokenizer_check_mb: 16.0}
EvaluateRecipe:
  {sources: null, bytes_per_source: 100000, num_examples: 200, limit: null, num_fewshot: null, max_length: null,
   per_task: {}, exchange_contexts: false, apply_chat_template: false, backend: transformers, dtype: float32,
   batch_size: 16, include_path: null, seed: 0}
DescribeRecipe: {license: null, languages: [], description: null}
BestRecipe: {task: null}
""")
FROZEN["PretrainRecipe"] |= yaml.safe_load("""
  {data_stages: [], packing: chunk, document_mask: false, initial: null, fill_in_the_middle: null,
   model.architecture: llama, model.head_dim: null, model.attention_bias: false, model.sliding_window: null,
   model.num_local_experts: 8, model.num_experts_per_tok: 2, model.router_aux_loss_coef: 0.001,
   model.num_key_value_heads: null, model.tie_word_embeddings: false, model.rope_theta: 10000.0,
   model.rope_scaling: null, model.rms_norm_eps: 1.0e-05, model.max_position_embeddings: 4096,
   model.initializer_range: 0.02}
""")


def _defaults(schema, prefix=""):
    """{dotted key: default} of all identity fields that have one."""
    found = {}
    for name, field in schema["properties"].items():
        if "properties" in field:
            found |= _defaults(field, f"{prefix}{name}.")
        elif field["x-kind"] == "identity" and name not in schema.get("required", ()):
            found[prefix + name] = field["default"]
    return found


@pytest.mark.parametrize("made", RECIPES, ids=lambda made: made.__name__)
def test_no_default_that_changes_results_has_changed(made):
    assert _defaults(recipe_schema.json_schema(made)) == FROZEN[made.__name__], (
        "a digest leaves defaults out: under a changed default, finished results are taken for what they are not. Add "
        "a new key with a default that does what was done before, and freeze it here; to change a default, give the "
        "key another name"
    )
