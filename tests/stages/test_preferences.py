"""Preferences as stages.finetune reads them: their fields, messages, templates, filters and mistakes."""

import json
import math

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.lib import manifest
from stages.lib.chat import template as chat_template
from stages.lib.chat.template import ChatTemplate
from stages.lib.sources.examples import read_preferences
from stages.lib.tokenizer.tokenizer import Tokenizer, special_tokens
from stages.lib.tuning import preference_samples
from stages.lib.tuning.encoded_examples import ExampleEncoder
from tests.helpers.data_fixtures import listed, write_jsonl
from tests.helpers.training import milestone, steps_of
from tests.stages import test_finetune
from tests.stages.test_dpo import PAIRS, RECIPE, SHORT, given, made, preferences_listed, prompt_of, records
from tests.stages.test_finetune import SEQ_LEN, refused, tune

__all__ = ["made"]

USER, ANSWER = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    ("recipe", "sentence"),
    [
        ({"z_loss": 1e-4}, "finetune.z_loss must be left out beside finetune.dpo, got 0.0001"),
        ({"loss_on": "all"}, "finetune.loss_on must be left out beside finetune.dpo, got all"),
        ({"weights": {"a": 1, "b": 1}}, "finetune.weights must name one source beside finetune.dpo, got a, b"),
        ({"seq_len": 4}, "the training split of source choices must have a pair of at most seq_len (4) tokens in two"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(made, tmp_path, capsys, recipe, sentence):
    line = refused(capsys, made, tmp_path, recipe=RECIPE | recipe, given=given(made))
    assert line.startswith(f"finetune: {sentence}")


@pytest.mark.parametrize(
    ("record", "said"),
    [
        ({"prompt": "a", "chosen": "b"}, " must have the field rejected, got prompt, chosen"),
        ({"chosen": [USER, ANSWER], "rejected": "no"}, ": rejected must be a list of messages, got 'no'"),
        ({"chosen": [ANSWER, USER], "rejected": [ANSWER]}, ": chosen must end with a turn of the assistant"),
    ],
)
def test_malformed_record_is_named_by_file_and_line(made, tmp_path, capsys, record, said):
    path = tmp_path / "choices.jsonl"
    path.write_text(f"{json.dumps(next(records()))}\n\n{json.dumps(record)}\n")
    source = listed(tmp_path, "choices", {"kind": "preference", "paths": [str(path)]})
    found = refused(capsys, made, tmp_path, recipe=RECIPE, given={"--sources": source})
    assert found.startswith(f"finetune: {path}, line 3{said}")
    source = listed(tmp_path, "choices", {"kind": "prompt_completion", "paths": [str(path)]})
    found = refused(capsys, made, tmp_path, recipe=RECIPE, given={"--sources": source})
    assert found == "finetune: sources.choices.kind must be preference for finetune.dpo, got prompt_completion"


def test_messages_after_a_shared_beginning_are_the_targets(made, tmp_path):
    other, question = {"role": "assistant", "content": "no"}, {"role": "user", "content": "And then?"}
    entries = [
        {"chosen": [USER, ANSWER], "rejected": [USER, other]},
        {"prompt": "not read beside messages", "chosen": [USER, ANSWER], "rejected": [USER, other]},
        {"prompt": [USER], "chosen": [ANSWER], "rejected": [other]},
        {"prompt": [USER, ANSWER, question], "chosen": [ANSWER], "rejected": [other, question, ANSWER]},
        {"chosen": [USER, ANSWER], "rejected": [USER, ANSWER]},
        {"chosen": [USER, {"role": "assistant", "content": "</s>"}], "rejected": [USER, other]},
        {"prompt": "a", "chosen": "b", "rejected": "no"},
    ]
    source = read_preferences(preferences_listed(tmp_path, entries, validation=0.0))
    tokenizer = Tokenizer(made / "tokenizers/main/manifest.json")
    template = ChatTemplate(chat_template.text_of("chatml", ""), special_tokens(tokenizer.manifest), "chatml")
    pairs = preference_samples.encode(source.train, ExampleEncoder(tokenizer=tokenizer, bos=True, template=template))
    said = [[tokenizer.decode(row.ids[row.is_target].tolist()) for row in pair] for pair in pairs]
    assert said == [*[["b", "no"]] * 3, ["b", "nob"], ["b", "b"], ["b", "no"]]
    for row in (row for pair in pairs for row in pair):
        assert row.ids[row.is_target][-1] == tokenizer.eos
    assert [pair[0].ids[: prompt_of(pair[0])].tolist() for pair in pairs[:3]] == [
        next(pair[1].ids[: prompt_of(pair[1])].tolist() for pair in pairs[:3])
    ] * 3


def test_chat_template_of_the_model_before_is_that_of_its_preference_tuning(made, tmp_path, capsys):
    chats = [{"messages": [USER | {"content": f"a{number}"}, ANSWER]} for number in range(20)]
    path = write_jsonl(tmp_path / "chats.jsonl", chats)
    source = listed(tmp_path, "chats", {"kind": "chat", "paths": [path], "validation": 0.3})
    keys = {"weights": {"chats": 1}, "template": "chatml"}
    recipe = {key: value for key, value in RECIPE.items() if key != "dpo"} | keys
    assert tune(made, tmp_path / "chat", 2, recipe, given={"--sources": source}, steps=2) == 0
    tuned = milestone(tmp_path / "chat", 2)
    entries = [
        {"chosen": [*chat["messages"]], "rejected": [chat["messages"][0], {"role": "assistant", "content": "no"}]}
        for chat in chats
    ]
    found = preferences_listed(tmp_path, entries)
    inputs = {"--sources": found, "--initial": tuned}
    assert tune(made, tmp_path / "dpo", 2, RECIPE, given=inputs, **SHORT) == 0
    assert steps_of(tmp_path / "dpo")[0]["loss"] == pytest.approx(math.log(2), abs=1e-6)
    before, after = (manifest.read(path).identity["template"] for path in (tuned, milestone(tmp_path / "dpo", 2)))
    assert before == after == chat_template.text_of("chatml", "")
    assert test_finetune.replayed(made, [found], tmp_path / "dpo") == 0
    line = refused(capsys, made, tmp_path / "none", recipe=RECIPE, given={"--sources": found})
    assert line.startswith("finetune: finetune.template is missing: source choices has conversations, and the initial")


def test_equal_and_long_pairs_are_filtered_and_counted(made, tmp_path):
    entries = [*records(), {"prompt": "a", "chosen": "b", "rejected": "b"}]
    entries += [{"prompt": f"a{number}", "chosen": "b", "rejected": "b " * 60} for number in range(3)]
    source = read_preferences(preferences_listed(tmp_path, entries, validation=0.0))
    tokenizer = Tokenizer(made / "tokenizers/main/manifest.json")
    pairs = preference_samples.encode(source.train, ExampleEncoder(tokenizer=tokenizer, bos=True))
    kept, filtered = preference_samples.usable(pairs, SEQ_LEN, "a")
    assert filtered == {f"longer than {SEQ_LEN} tokens": 3, preference_samples.EQUAL: 1}
    assert len(kept) == PAIRS


def texts_of(preference):
    """Prompt, chosen and rejected completion of a preference."""
    return preference.chosen.prompt, preference.chosen.completion, preference.rejected.completion


def test_parquet_has_the_preferences_of_json_lines_and_filters_read_the_chosen(tmp_path):
    entries = [*records()]
    path = tmp_path / "choices.parquet"
    pq.write_table(pa.Table.from_pylist(entries), path)
    lines = read_preferences(preferences_listed(tmp_path / "lines", entries))
    recipe = {"kind": "preference", "paths": [str(path)], "validation": 0.2}
    rows = read_preferences(listed(tmp_path / "rows", "choices", recipe))
    texts = [[texts_of(one) for one in source.train] for source in (lines, rows)]
    assert texts[0] == texts[1] and len(texts[0]) > 20
    longest = max(len(entry["prompt"] + entry["chosen"]) for entry in entries)
    filters = {"max_bytes": longest - 1}
    shorter = read_preferences(listed(tmp_path / "filtered", "choices", recipe | {"filters": filters}))
    expected = [text for text in texts[0] if len(text[0] + text[1]) < longest]
    assert [texts_of(one) for one in shorter.train] == expected != texts[0]
    path = tmp_path / "messages.parquet"
    pq.write_table(pa.Table.from_pylist([{"chosen": [USER, ANSWER], "rejected": [USER, USER | ANSWER]}] * 3), path)
    messages = read_preferences(listed(tmp_path / "messages", "choices", recipe | {"paths": [str(path)]}))
    assert {one.chosen.messages[-1]["content"] for one in (*messages.train, *messages.validation)} == {"b"}
