"""backend: vllm, through an imitation of vLLM's classes over transformers: vLLM is not one of the requirements."""

import importlib.metadata
import sys
import types

import pytest
import torch

from stages.lib import manifest, scoring
from stages.lib.distributed.process_group import process_group
from stages.lib.errors import UserError
from stages.lib.scoring import harness_model
from tests.helpers import evaluations
from tests.helpers.evaluations import refused, scored, with_recipe

TOKENIZER = {"bos": 1, "eos": 2, "bos_added": False}
WINDOW, POSITIONS = 16, 128
REQUESTS = [([1, 4, 5], [6, 7]), ([1, 4, 5], [8, 9, 9]), ([], [3]), ([*range(3, 18)], [20, 21, 22, 23]), ([1], [3])]
MODULES = ("vllm", "vllm.lora", "vllm.lora.request", "vllm.renderers", "vllm.renderers.hf", "vllm.tokenizers")


class Engine:
    """vLLM's LLM: it refuses inputs that leave no room for a token, and returns log-probabilities of the input."""

    def __init__(self, model, max_model_len, dtype, **options):
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype))
        self.room, self.options, self.inputs = max_model_len, options, []
        self.llm_engine = types.SimpleNamespace(model_config=None)

    @torch.inference_mode()
    def generate(self, prompts, sampling_params, use_tqdm, lora_request):
        self.inputs += [prompt["prompt_token_ids"] for prompt in prompts]
        return [self._logprobs(prompt["prompt_token_ids"]) for prompt in prompts]

    def _logprobs(self, ids):
        assert len(ids) < self.room
        values = self.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
        found = [None]
        for row, following in zip(values, ids[1:], strict=False):
            found.append({int(row.argmax()): float(row.max()), following: float(row[following])})
        return types.SimpleNamespace(prompt_logprobs=found)


@pytest.fixture(scope="module")
def vllm():
    """Modules by the names of vLLM's. The harness registers its class for them once per process."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _imitate(monkeypatch)
        yield


def _imitate(monkeypatch):
    from transformers import AutoTokenizer

    modules = {name: types.ModuleType(name) for name in MODULES}
    for name, module in modules.items():
        module.__spec__ = types.SimpleNamespace(name=name)
        monkeypatch.setitem(sys.modules, name, module)
    modules["vllm"].LLM, modules["vllm"].SamplingParams, modules["vllm"].TokensPrompt = Engine, dict, dict
    modules["vllm.lora.request"].LoRARequest = None
    modules["vllm.renderers.hf"].resolve_chat_template = lambda **_: None
    modules["vllm.tokenizers"].get_tokenizer = lambda path, add_bos_token, tokenizer_mode, **_: (
        AutoTokenizer.from_pretrained(path, add_bos_token=add_bos_token)
    )
    version = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.32.0" if name == "vllm" else version(name))


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return evaluations.export(tmp_path_factory.mktemp("made"))


def test_log_likelihoods_are_those_of_transformers(made, vllm):
    from stages.lib.scoring import vllm_model

    directory = made["--export"].parent
    requests = [(None, *request) for request in REQUESTS + REQUESTS]
    with process_group() as device:
        theirs = harness_model.load_model(directory, TOKENIZER, batch_size=4, window=WINDOW, device=device)
        ours = vllm_model.load_model(directory, TOKENIZER, window=WINDOW, positions=POSITIONS)
        expected, found = theirs._loglikelihood_tokens(requests), ours._loglikelihood_tokens(requests)
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert len(ours.model.inputs) == len(REQUESTS)  # equal requests once


def test_a_window_of_all_positions_leaves_room_for_what_vllm_generates(made, vllm):
    from stages.lib.scoring import vllm_model

    with process_group():
        model = vllm_model.load_model(made["--export"].parent, TOKENIZER, window=POSITIONS, positions=POSITIONS)
        model._loglikelihood_tokens([(None, [5] * 200, [6, 7])])
    assert (model.window, model.max_length, model.model.room) == (POSITIONS - 2, POSITIONS, POSITIONS)
    assert [len(ids) for ids in model.model.inputs] == [POSITIONS - 1]


def test_scores_of_the_stage_are_those_of_transformers(made, vllm, tmp_path):
    theirs = scored({**made, "--output": tmp_path / "transformers.json"}, max_length=32)
    ours = scored({**made, "--output": tmp_path / "vllm.json"}, max_length=32, backend="vllm", batch_size="auto")
    assert manifest.read(tmp_path / "vllm.json").identity["vllm"] == "0.32.0"
    for task, metrics in theirs.items():
        for name, metric in metrics.items():
            assert ours[task][name]["value"] == pytest.approx(metric["value"], rel=1e-5)
            assert ours[task][name]["n"] == metric["n"]


def test_several_processes_are_refused(made, vllm, monkeypatch):
    from stages.lib.scoring import vllm_model

    monkeypatch.setattr(vllm_model.dist, "get_world_size", lambda: 2)
    with pytest.raises(UserError, match=r"one process scores with all accelerators \(ranks: 1\)"):
        vllm_model.load_model(made["--export"].parent, TOKENIZER, window=WINDOW, positions=POSITIONS)


def test_without_vllm_it_is_a_sentence(made, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "vllm", None)  # as if it were not installed
    for name in ("stages.lib.scoring.vllm_model", "lm_eval.models.vllm_causallms"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.delattr(scoring, "vllm_model", raising=False)
    argv = with_recipe({**made, "--output": tmp_path / "vllm.json"}, backend="vllm", batch_size="auto")
    refused(argv, capsys, "evaluate.backend: vllm needs an installed vLLM")
    assert not (tmp_path / "vllm.json").exists()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"batch_size": 16}, "evaluate.batch_size must be auto with backend: vllm"),
        ({"tasks": ["completion_match"]}, "evaluate.backend must be transformers for completion_match"),
    ],
)
def test_what_vllm_does_not_do_is_refused(made, capsys, tmp_path, keys, said):
    recipe = {"backend": "vllm", "batch_size": "auto"} | keys
    refused(with_recipe({**made, "--output": tmp_path / "a.json"}, **recipe), capsys, said)
