"""Masked personal data: what is found by rule and what is not, in shards, validation text and manifests."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages import find_duplicates, hash_documents, index, tokenize
from stages import list as listing
from stages.lib.sources import masks
from tests.helpers.data_fixtures import lines_listed, listed, make, refused, tokenized, write_jsonl
from tests.helpers.manifests import record_of
from tools.inspect.__main__ import main as inspect

EVERY = list(masks.MARKS)
PEM = "-----BEGIN RSA PRIVATE KEY-----\nMIIB+Vx/a-b=\n-----END RSA PRIVATE KEY-----"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9PlFUP0THsR8U"
AWS = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"


def of(text, *kinds):
    ((result, counts),) = masks.masked(kinds or EVERY, [text])
    assert sum(counts.values()) == result.count("<")
    return result


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(("email", data) for data in ("a@b.co", "jo.doe+x@mail.example.co.uk", "o'neil_%@x-y.museum", "A@B.XN--P1A")),
        *(("ip_address", data) for data in ("8.8.8.8", "193.163.229.23", "2001:4860:4860::8888", "2a02:8108::1")),
        *(("secret_key", data) for data in ("AKIAIOSFODNN7EXAMPLE", PEM, PEM.replace("\n", "\\n"), JWT)),
        ("secret_key", PEM.replace("RSA", "OPENSSH")),
        ("secret_key", PEM.replace("RSA ", "PGP ").replace("KEY-", "KEY BLOCK-")),
        *(("secret_key", f"{mark}_{'aB3' * 12}") for mark in ("ghp", "gho", "ghs", "npm")),
        ("secret_key", f"github_pat_{'aB' * 41}"),
        ("secret_key", f"sk-{'a' * 20}T3BlbkFJ{'b' * 20}"),
        ("secret_key", f"sk-proj-{'a' * 66}T3BlbkFJ{'_' * 66}"),
        ("secret_key", f"sk-ant-api03-{'aB-' * 31}"),
        ("secret_key", "xoxb-123456789012-1234567890123-abcdefABCDEF"),
        *(("secret_key", data) for data in (f"AIza{'aB3-_' * 7}", f"sk_live_{'a1' * 12}", f"hf_{'aB' * 17}")),
        ("secret_key", f"SG.{'a' * 22}.{'b' * 43}"),
        *(("phone", data) for data in ("+49 (0)30 1234-5678", "+1.555.123.4567", "+15551234567", "+44 20 7946 0958")),
    ],
)
@pytest.mark.parametrize("text", ["{}", "of {}, and", "({}) \u90ae\u7bb1{}\n{}"])
def test_data_of_a_kind_are_replaced_by_its_name_wherever_they_stand(kind, data, text):
    assert of(text.replace("{}", data)) == text.replace("{}", f"<{kind}>")
    assert of(text.replace("{}", data), *set(EVERY) - {kind}) == text.replace("{}", data)


@pytest.mark.parametrize(
    "text",
    [
        *("@decorator", "a @ b.co", "logo@2x.png", "user@localhost", "x@1.2"),
        *("10.0.0.1 192.168.1.1 127.0.0.1 0.1.2.3 172.16.4.1", "999.1.1.1", "108.0.0.01", "v1.2.3.4", "1.2.3.4.5"),
        *("::1 fe80::1 2001:db8::1", "dead::beef a::b std::vector", "12:30:45", "2024:10:11"),
        *("+1.23456789 +0.12345678", "+0200", "1+23456789012", "+1 2 3", "+1234567890123456789"),
        *("sk-learn", "AKIA", "eyJhbGci", "-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----", "glpat-"),
    ],
)
def test_what_only_looks_like_data_stays(text):
    assert of(text) == text
    assert of(f'aws_secret_access_key = "{AWS}"') == 'aws_secret_access_key = "<secret_key>"'


@given(st.lists(st.sampled_from(["a@b.co", "8.8.8.8", "+15551234567", "@", ".", ":", "\u00e9", JWT, PEM, "a"])))
@settings(deadline=None)
def test_each_word_of_a_text_is_masked_for_itself(words):
    assert of("\n".join(words)) == "\n".join(map(of, words))


@pytest.mark.parametrize(
    "unit",
    [
        *("a", "1.", "1", "@", "a@", "a.@", "@a.", "+1", "+1 ", "2001:", "1.1.1.1.", "sk-", "eyJ", "xox", "secret_key"),
        *("-----BEGIN PRIVATE KEY-----\n", f"sk-{'a' * 20}", f"eyJ{'a' * 20}.", "SECRET_ACCESS_KEY   ", "gh_ghp_"),
    ],
)
def test_a_long_run_is_read_in_linear_time(unit):
    characters = 10_000_000 if unit in {"a", "1."} else 1_000_000
    begun = time.process_time()
    masks.masked(EVERY, [unit * (characters // len(unit))])
    assert time.process_time() - begun < 4  # one look at a quarter of all pairs of characters takes an hour


def test_shards_validation_text_and_duplicates_have_the_masked_text_and_manifests_no_data(tmp_path, tokenizer, capsys):
    secret = [f"reader{number}@example.com" for number in range(40)]
    entries = [{"text": f"write to {address} or +1 555 0100 {number:04d}"} for number, address in enumerate(secret)]
    entries += [{"text": f"{secret[0]} a"}] * 2 + [{"text": f"{secret[1]} {secret[2]} a"}, {"text": secret[3]}]
    recipe = {"validation": 0.2, "filters": {"min_words": 2}, "mask": ["phone", "email"]}
    source = lines_listed(tmp_path, entries, **recipe)
    hashes = tmp_path / "hashes.json"
    make(hash_documents, list=source, part=0, parts=1, output=hashes)
    found = make(find_duplicates, hashes=[hashes], output=tmp_path / "duplicates.json")
    output = tmp_path / "tokens/main/a/00000.json"
    options = {"list": source, "tokenizer": tokenizer, "part": 0, "recipe": {"duplicates": "drop"}}
    make(tokenize, **options, duplicates=found, output=output)
    record = record_of(output)
    assert record["dropped"] == {"duplicate": 40, "filters.min_words": 1}  # all but one of each text are equal now
    assert record["masked"] == {"email": 4, "phone": 1}
    assert record["dropped_examples"]["filters.min_words"][0]["text"] == "<email>"
    everything = b"".join(file.read_bytes() for file in output.parent.rglob("*") if file.is_file())
    assert b"@example" not in everything
    assert b"write to <email> or <phone>" in everything
    corpus = make(index, tokenizer=tokenizer, parts=[output], output=tmp_path / "tokens/main/manifest.json")
    assert record_of(corpus)["masked"] == {"a": {"email": 4, "phone": 1}}
    capsys.readouterr()
    assert inspect(["--corpus", str(corpus), "--tokenizer", str(tokenizer), "--documents", "0"]) == 0
    assert "masked in a: 4 email, 1 phone\n" in capsys.readouterr().out
    assert inspect(["--source", str(source), "--documents", "0"]) == 0
    assert "masked: 44 email, 40 phone\n" in capsys.readouterr().out


def test_text_without_data_gives_the_shards_of_a_source_without_masks(tmp_path, tokenizer):
    path = write_jsonl(tmp_path / "a.jsonl", [{"text": f"number {number} of all @ 1.5"} for number in range(50)])
    shards = []
    for name, mask in (("plain", []), ("masked", EVERY)):
        source = listed(tmp_path / name, "a", {"kind": "jsonl", "paths": [path], "validation": 0.2, "mask": mask})
        (part,) = tokenized(tmp_path / name, "a", source, tokenizer)
        shards.append(
            [file.read_bytes() for file in sorted(part.with_suffix("").glob("*.*")) if file.stem != "manifest"]
        )
        assert "masked" not in record_of(part)
    assert shards[0] == shards[1] and len(shards[0]) == 3


@pytest.mark.parametrize(
    ("recipe", "said"),
    [
        ({"kind": "chat", "mask": ["email"]}, "list.mask must be left out for the kind chat"),
        (
            {"kind": "parquet", "mask": ["email"], "token_ids_field": "ids"},
            "list.mask must be left out beside token_ids_field: it replaces text",
        ),
    ],
)
def test_a_mistake_is_one_sentence(tmp_path, capsys, recipe, said):
    recipe |= {"paths": [write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}])]}
    line = refused(capsys, listing, name="a", recipe=recipe, output=tmp_path / "list.json")
    assert line.startswith(f"list: {said}")
