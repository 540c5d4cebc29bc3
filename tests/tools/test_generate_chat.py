"""tools.generate --chat: answers, history, the chat template, and what ends an answer."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from stages.lib.errors import UserError
from stages.lib.model import generation
from tests.helpers import evaluations, training
from tests.helpers.data_fixtures import tiny_corpus
from tools.generate import __main__ as generate
from tools.generate.conversation import History

TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
TOKENS = 6


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    """The directory of an export of random weights, with a chat template."""
    directory = evaluations.export(tmp_path_factory.mktemp("made"))["--export"].parent
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory


@pytest.fixture
def talk(monkeypatch, capsys):
    """Hold a conversation at temperature 0; returns (lines of standard output, standard error)."""

    def call(lines, *arguments, code=0):
        monkeypatch.setattr("sys.stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
        capsys.readouterr()
        options = ["--chat", "--temperature", "0", "--tokens", str(TOKENS), *map(str, arguments)]
        assert generate.main(options) == code
        found = capsys.readouterr()
        return found.out, found.err

    return call


@pytest.fixture
def seen(monkeypatch):
    """Record conversations: [(ids that the model continued, its answer)]."""
    continuations, answer, calls = generation.continuations, History.answer, []

    def spied(model, prompt, *arguments):
        calls.append([prompt[0].tolist()])
        return continuations(model, prompt, *arguments)

    def kept(history, text):
        calls[-1].append(text)
        answer(history, text)

    monkeypatch.setattr(generation, "continuations", spied)
    monkeypatch.setattr(History, "answer", kept)
    return calls


LINES = ["def name", "", "return value", "class"]


def check_against_transformers(calls, directory, system=None):
    """Check that the ids are those of apply_chat_template with all that was said before."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory, split_special_tokens=False)
    messages = [{"role": "system", "content": system}] if system else []
    assert calls
    for line, (ids, answer) in zip(filter(None, LINES), calls, strict=False):
        messages.append({"role": "user", "content": line})
        expected = tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_dict=False, chat_template=TEMPLATE
        )
        assert ids == expected
        assert ids[0] == 1
        messages.append({"role": "assistant", "content": answer})


@pytest.mark.parametrize("system", [None, "self"])
def test_the_model_reads_all_that_was_said_before(export, talk, seen, system):
    said, _ = talk(LINES, "--model", export, *(["--system", system] if system else []))
    assert len(seen) == 3
    check_against_transformers(seen, export, system)
    assert said == "".join(f"{answer}\n" for _, answer in seen)


def test_an_answer_is_that_of_transformers(export, talk):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(export, split_special_tokens=False)
    ids = torch.tensor([tokenizer.encode("user: def\nassistant:")])
    model = AutoModelForCausalLM.from_pretrained(export, dtype=torch.float32)
    made = model.generate(ids, max_new_tokens=3, do_sample=False, pad_token_id=2)[0, ids.shape[1] :].tolist()
    said, _ = talk(["def"], "--model", export, "--tokens", "3")
    assert said == tokenizer.decode(made, skip_special_tokens=True) + "\n"


def test_a_checkpoint_has_the_template_of_the_option(talk, seen, tmp_path):
    results = tmp_path / "results"
    assert training.train(tiny_corpus(results), results / "runs/base", 2, steps=2) == 0
    (tmp_path / "chat.jinja").write_text(TEMPLATE)
    model = training.milestone(results / "runs/base", 2)
    talk(LINES[:1], "--model", model, "--template", tmp_path / "chat.jinja")
    check_against_transformers(seen, results / "tokenizers/main")
    _, told = talk(LINES, "--model", model, code=2)
    assert "the model has no chat template, which --chat needs: give --template" in told


def test_a_message_that_is_refused_is_a_sentence_and_the_next_is_answered(export, talk, tmp_path):
    refusing = "{% if 'no' in messages[-1].content %}{{ raise_exception('not this') }}{% endif %}" + TEMPLATE
    (tmp_path / "chat.jinja").write_text(refusing)
    said, told = talk(["no", "a</s>b", *LINES], "--model", export, "--template", tmp_path / "chat.jinja")
    assert "this conversation cannot be rendered by the chat template" in told and "chat.jinja: not this\n" in told
    assert "a message must not hold the text of a special token, got </s>" in told
    assert said == talk(LINES, "--model", export)[0]


def test_the_oldest_messages_are_dropped_with_a_word(export, talk):
    many = [f"return value {number}" for number in range(12)]
    said, told = talk(many, "--model", export)
    assert said.count("\n") >= len(many)
    assert "the context is full: the oldest 2 messages are dropped" in told
    _, told = talk(["value " * 200, "name"], "--model", export)
    assert "a message must have at most the model's 128 tokens" in told


def test_ctrl_c_ends_an_answer_and_not_the_conversation(export, talk, monkeypatch):
    whole, _ = talk(LINES[:1], "--model", export)
    continuations, calls = generation.continuations, []

    def interrupted(*arguments):
        calls.append(arguments)
        for number, step in enumerate(continuations(*arguments)):
            if len(calls) == 1 and number == 2:
                raise KeyboardInterrupt
            yield step

    monkeypatch.setattr(generation, "continuations", interrupted)
    said, _ = talk([LINES[0], "class"], "--model", export)
    first, _, second = said.partition("\n")
    assert whole.startswith(first) and len(first) < len(whole.rstrip("\n"))
    assert second.endswith("\n") and len(calls) == 2


def test_options_that_do_not_fit_are_refused(export, capsys):
    for words, sentence in (
        ("--chat --prompt a", "--prompt must be omitted with --chat, which reads standard input"),
        ("--prompt a --system b", "--system must be omitted without --chat"),
        ("--chat --template /nowhere", "--template must be chatml, tulu or a file, and /nowhere cannot"),
    ):
        assert generate.main(["--model", str(export), *words.split()]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"generate: {sentence}")


def encode(messages):
    """One id per letter and one per message."""
    return [0] * sum(1 + len(message["content"]) for message in messages)


@given(st.lists(st.integers(0, 15), max_size=9), st.integers(0, 4), st.booleans())
def test_what_is_kept_fits_and_is_the_end_of_what_was_said(lengths, room, with_system):
    history, said = History(encode, 16, room, "s" if with_system else None), []
    for length in lengths:
        try:
            ids, dropped = history.ask("a" * length)
        except UserError:
            assert length + 1 + 2 * with_system >= 16
            continue
        said = [*said, ("user", "a" * length)][dropped:]
        assert [(turn["role"], turn["content"]) for turn in history.turns] == said
        assert said[0][0] == "user"
        assert len(ids) == 2 * with_system + sum(1 + len(text) for _, text in said) < 16
        assert len(ids) + max(1, room) <= 16 or len(said) == 1
        history.answer("b")
        said.append(("assistant", "b"))
