"""Chat templates: rendered as by transformers, in a sandbox; the assistant's turns are found in their text."""

import json

import jinja2
import pytest

from stages.lib.chat import messages
from stages.lib.chat import template as template_module
from stages.lib.chat.template import (
    SHIPPED,
    ChatTemplate,
    LimitError,
    Sandbox,
    assistant_spans,
    guarded_transformers,
    text_of,
)
from stages.lib.errors import UserError

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<unk>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Weather in Oslo?"},
    {"role": "assistant", "tool_calls": [{"function": {"name": "weather", "arguments": {"city": "Oslo"}}}]},
    {"role": "tool", "content": "5 C"},
    {"role": "assistant", "content": "5 C."},
    {"role": "user", "content": "Thanks\u00e9"},
    {"role": "assistant", "content": "Bye \u4e2d"},
]
OWN = {
    "no EOS": "{% for m in messages %}[{{ m.role }}]{{ m.content }}[/]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}",
    "llama": "{{ bos_token }}{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate user/assistant') }}{% endif %}{% if m.role == 'user' %}"
    "{{ '[INST] ' + m.content.strip() + ' [/INST]' }}"
    "{% else %}{{ ' ' + m.content | trim + ' ' + eos_token }}{% endif %}"
    "{% endfor %}",
}


def template(name):
    text = OWN[name] if name in OWN else text_of(name, "finetune.template")
    return ChatTemplate(text, SPECIAL, name)


def turns(name, chat):
    text, spans = assistant_spans(template(name), chat, "a.jsonl:1")
    return [text[begin:end] for begin, end in spans]


def test_chatml_is_that_of_a_tokenizer_whose_eos_ends_a_turn():
    special = {"bos_token": "", "eos_token": "<|im_end|>"}
    chatml = ChatTemplate(text_of("chatml", "x"), special, "chatml")
    assert chatml.render(CHAT[:2], "a", generation_prompt=True) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWeather in Oslo?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tulu_is_the_published_one_after_bos():
    assert template("tulu").render([*CHAT[:2], *CHAT[4:6]], "a", generation_prompt=True) == (
        "<s><|system|>\nBe brief.\n<|user|>\nWeather in Oslo?\n<|assistant|>\n5 C.</s>\n<|user|>\nThanks\u00e9\n"
        "<|assistant|>\n"
    )


CHANGING = "{% for m in messages %}{{ m.role if loop.last else '' }}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize("text", [CHANGING, "", "hello", "{% for m in messages %}{{ eos_token }}{% endfor %}"])
def test_template_that_renders_nothing_of_the_assistant_or_changes_with_later_turns_is_refused(text):
    said = "beginning of the conversation, .*" if text == CHANGING else "each turn .* nothing"
    with pytest.raises(UserError, match=f"^the chat template mine must render .*{said} for message 1 of a.jsonl:1$"):
        assistant_spans(ChatTemplate(text, SPECIAL, "mine"), CHAT[3:], "a.jsonl:1")


CALL = '\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call></s>'


@pytest.mark.parametrize(
    ("name", "chat", "expected"),
    [
        ("chatml", CHAT, [f"{CALL}\n", "5 C.</s>\n", "Bye \u4e2d</s>\n"]),
        ("tulu", CHAT, [CALL, "5 C.</s>", "Bye \u4e2d</s>"]),
        ("no EOS", CHAT[3:], ["5 C.[/]", "Bye \u4e2d[/]"]),
        ("llama", [*CHAT[1:2], *CHAT[4:]], [" 5 C. </s>", " Bye \u4e2d </s>"]),
    ],
)
def test_turns_of_the_assistant_are_found_in_the_text(name, chat, expected):
    assert turns(name, chat) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{% for m in messages %}", "the chat template mine, line 1, is not valid: Unexpected end of template."),
        ("a\n{% nothing %}", "the chat template mine, line 2, is not valid: Encountered unknown tag 'nothing'."),
        ("{{ strftime_now('%Y') }}", "the chat template mine must not use strftime_now"),
        ("{{ raise_exception('roles must alternate') }}", "by the chat template mine: roles must alternate"),
        ("{{ messages[9].content.x }}", "by the chat template mine: list object has no element 9"),
        ("{{ messages.append(1) }}", "by the chat template mine: access to attribute 'append' of 'list' object"),
        (
            "{{ ''.__class__.x }}",
            "by the chat template mine: access to attribute '__class__' of 'str' object is unsafe.",
        ),
        ("{% set n = namespace(_a=1) %}", "an attribute of a namespace must not begin with _, got '_a'"),
        ("{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}", "it takes more than 0.05 s"),
        ("{{ messages[0].role * 2 ** 35 }}", "by the chat template mine: it takes more than 1 GiB of memory"),
        ("{{ 'a' * 2 ** 35 }}", "by the chat template mine: it takes more than 1 GiB of memory"),
        ("{{ 9 ** (9 ** 9) }}", "mine cannot be compiled: it takes more than 0.05 s"),
        (
            "{% set n = namespace(a=[], b=[]) %}{% for i in range(40) %}{% set n.a = [n.a, n.a] %}"
            "{% set n.b = [n.b, n.b] %}{% endfor %}{{ n.a == n.b }}",
            "it takes more than 0.05 s",
        ),
        (
            "{% set n = namespace(x='ab') %}{% for i in range(40) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
            "by the chat template mine: it takes more than 1 GiB of memory",
        ),
        ("{{ lipsum(n=10**8) }}", "it takes more than 0.05 s"),
        ("{{ messages | slice(10**10) | list }}", "it takes more than 0.05 s"),
        ("{% for i in [1] %}" * 22 + "{% endfor %}" * 22, "mine cannot be compiled: too many statically nested blocks"),
        (f"{{{{ {'(' * 3000}1{')' * 3000} }}}}", "mine cannot be compiled: maximum recursion depth exceeded"),
    ],
)
def test_template_that_fails_is_one_sentence(monkeypatch, text, said):
    sandbox = Sandbox() if "0.05 s" in said else template_module.SANDBOX
    monkeypatch.setattr(template_module, "SANDBOX", sandbox)
    if "0.05 s" in said:
        monkeypatch.setattr(sandbox, "SECONDS", 0.05)
    with pytest.raises(UserError) as error:
        ChatTemplate(text, SPECIAL, "mine").render(CHAT, "a.jsonl:7")
    assert said in str(error.value) and "\n" not in str(error.value)


def test_transformers_renders_in_the_sandbox_while_it_is_guarded():
    from transformers.utils import chat_template_utils

    theirs = chat_template_utils._compile_jinja_template
    text = OWN["llama"] + "{{ strftime_now('%Y')[:2] }}{{ dict.fromkeys('a', tools) }}"
    options = {"chat_template": text, "tools": [{"name": "f"}], **SPECIAL}
    expected = chat_template_utils.render_jinja_template([CHAT[1:2]], **options)
    with guarded_transformers():
        assert chat_template_utils.render_jinja_template([CHAT[1:2]], **options) == expected
        with pytest.raises(jinja2.TemplateError, match="must alternate"):
            chat_template_utils.render_jinja_template([CHAT[2:3]], **options)
        with pytest.raises(LimitError, match="cannot render a question: it takes more than 1 GiB of memory"):
            chat_template_utils.render_jinja_template([CHAT[1:2]], **options | {"chat_template": "{{ 'a' * 2**35 }}"})
    assert chat_template_utils._compile_jinja_template is theirs


def test_template_must_be_a_file_of_text(tmp_path):
    with pytest.raises(UserError, match=r"^finetune.template must be chatml, tulu or a file, and .*: No such file"):
        text_of(str(tmp_path / "none.jinja"), "finetune.template")
    (tmp_path / "binary.jinja").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match=r"^finetune.template must be a text file of UTF-8, and "):
        text_of(str(tmp_path / "binary.jinja"), "finetune.template")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (None, "where must be a list of messages, got None"),
        (["a"], "where[0] must be a mapping with role and content, got 'a'"),
        ([{"role": "bot", "content": "a"}], "where[0].role must be one of system, user, assistant, tool, got 'bot'"),
        ([CHAT[1], {"role": "assistant", "content": " \n"}], "where[1].content must not be empty, got ' \\n'"),
        ([{"role": "user", "content": [{"type": "text"}]}], "where[0].content must be text, got [{'type': 'text'}]"),
        (CHAT[:2], "where must have a message of the assistant, got system and user alone"),
        ([CHAT[2] | {"tool_calls": "f"}], "where[0].tool_calls must be a list of mappings, got 'f'"),
    ],
)
def test_what_is_no_conversation_is_refused(value, said):
    with pytest.raises(UserError) as error:
        messages.checked(value, "where")
    assert str(error.value) == said


def test_keys_without_a_value_are_left_out_as_transformers_does():
    (message,) = messages.checked([{"role": "assistant", "content": "a", "name": None}], "where")
    assert message == {"role": "assistant", "content": "a"}


def test_prompt_is_what_stands_before_the_first_answer():
    greeting, call, answer = ({"role": "assistant", "content": "Hello!"}, CHAT[2], CHAT[4])
    for chat, expected in (
        (CHAT, CHAT[:2]),
        ([CHAT[0], greeting, CHAT[1], call, CHAT[3], answer], [CHAT[0], greeting, CHAT[1]]),
        ([CHAT[0], greeting], [CHAT[0], greeting]),
        ([greeting, CHAT[1]], [greeting, CHAT[1]]),
    ):
        assert json.loads(messages.prompt_of(chat)) == expected


@pytest.mark.parametrize("name", messages.REASONING)
def test_thoughts_have_the_names_of_transformers(name):
    from transformers.utils.chat_template_utils import render_jinja_template

    text = "{% for m in messages %}{{ m.thinking }}|{{ m.reasoning_content }}|{{ m.reasoning }}{% endfor %}"
    chat = [CHAT[1], {"role": "assistant", name: "hm", "content": "5 C."}]
    (expected,), _ = render_jinja_template([chat], chat_template=text, **SPECIAL)
    assert ChatTemplate(text, SPECIAL, "mine").render(messages.checked(chat, "where"), "a") == expected


TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {}}}}}]


def test_tools_reach_the_template_as_in_transformers():
    from transformers.utils.chat_template_utils import render_jinja_template

    text = "{% if tools %}{{ tools | tojson }}{% endif %}" + OWN["no EOS"]
    chat = [*CHAT[1:2], *CHAT[4:5]]
    (expected,), _ = render_jinja_template([chat], tools=TOOLS, chat_template=text, **SPECIAL)
    assert '"name": "f"' in expected
    for given in (TOOLS, json.dumps(TOOLS), [TOOLS[0] | {"strict": None}]):
        tools = messages.checked_tools(given, "where")
        assert assistant_spans(ChatTemplate(text, SPECIAL, "mine"), chat, "a", tools=tools)[0] == expected


def test_arguments_as_json_text_are_the_object_and_results_may_be_empty():
    given = (
        '{"city": "Kara", "days": null}',
        {"city": "Kara", "days": None},
        "no JSON",
        "[1]",
        "",
        " ",
        "null",
        [],
        {},
    )
    chat = [
        *({"role": "system", "content": ""}, CHAT[1]),
        {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": one}} for one in given]},
        *({"role": "tool", "content": ""}, {"role": "tool", "content": None}, CHAT[4]),
    ]
    found = messages.checked(chat, "where")
    city = {"city": "Kara"}
    calls = found[2]["tool_calls"]
    assert [messages.arguments_of(call) for call in calls] == [city, city, "no JSON", "[1]", *[{}] * 5]
    text = template("chatml").render(found, "a")
    assert '{"name": "f", "arguments": {"city": "Kara"}}' in text and '"arguments": "no JSON"' in text
    assert text.count("<|im_start|>tool\n</s>") == 2 and text.startswith("<s><|im_start|>system\n</s>")


@pytest.mark.parametrize("name", [*SHIPPED, *OWN])
@pytest.mark.parametrize("generation_prompt", [False, True])
def test_text_is_that_of_transformers(name, generation_prompt):
    from transformers.utils.chat_template_utils import render_jinja_template

    chat = CHAT if name in SHIPPED else [*CHAT[1:2], *CHAT[4:]]
    (text,), _ = render_jinja_template(
        [chat], chat_template=template(name).text, add_generation_prompt=generation_prompt, **SPECIAL
    )
    assert template(name).render(chat, "a", generation_prompt) == text
