"""Remote sources: an S3-compatible server on loopback, read as streams, gives the shards of local files."""

import gzip
import http.server
import json
import logging
import threading
from unittest import mock
from urllib.parse import parse_qs, quote, urlsplit

import pyarrow as pa
import pytest

from stages import list as listing
from stages import tokenize
from stages.lib.sources import reading, spans, storage
from stages.lib.sources.kinds.registry import KINDS
from tests.helpers.data_fixtures import in_plain_lines, listed, parquet_of, refused, run, texts, tokenized
from tests.helpers.manifests import held_out, names_of, shards_of
from tools.inspect import __main__ as inspect

ROWS = [{"text": text} for text in texts("a", 80)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
RECIPE = {"kind": "jsonl", "validation": 0.15}


def serving():
    """A server that speaks S3."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.WARNING)
    running = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    return running


def url_of(running):
    host, port = running.get_host_and_port()
    return f"http://{host}:{port}"


@pytest.fixture(scope="module")
def server():
    """The URL of a server that speaks S3."""
    running = serving()
    yield url_of(running)
    running.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    """A bucket with the rows in several forms, reached by the variables that every S3 client knows."""
    yield bucket_at(server, monkeypatch)
    storage._file_system.cache_clear()


def bucket_at(url, monkeypatch):
    """A bucket at a server, by the environment variables."""
    import fsspec

    secrets = {"ACCESS_KEY_ID": "key", "SECRET_ACCESS_KEY": "secret", "DEFAULT_REGION": "us-east-1"}
    for name, value in {"ENDPOINT_URL": url, **secrets}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    storage._file_system.cache_clear()
    fsspec.filesystem("s3").clear_instance_cache()
    system = fsspec.filesystem("s3")
    system.mkdirs("texts", exist_ok=True)
    forms = {
        "plain/a.jsonl": LINES,
        "compressed/a.jsonl.gz": gzip.compress(LINES),
        "compressed/b.jsonl.zst": pa.compress(LINES, "zstd", asbytes=True),
        "rows/a.parquet": parquet_of(ROWS, row_group_size=9),
        "plain/README.md": b"what this is",
    }
    for name, content in forms.items():
        system.pipe_file(f"texts/{name}", content)
    return system


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """(tokenizer, bytes of the shards) of the same rows in a local file."""
    return in_plain_lines(tmp_path_factory.mktemp("plain"), ROWS, validation=RECIPE["validation"])


@pytest.mark.parametrize(
    ("kind", "url"),
    [
        ("jsonl", "s3://texts/plain/a.jsonl"),
        ("jsonl", "s3://texts/plain"),
        ("jsonl", "s3://texts/compressed/*.gz"),
        ("jsonl", "s3://texts/compressed/b.jsonl.zst"),
        ("parquet", "s3://texts/rows/**"),
    ],
)
def test_a_bucket_gives_the_shards_that_a_local_file_gives(tmp_path, bucket, plain, kind, url):
    source = listed(tmp_path, "a", RECIPE | {"kind": kind, "paths": [url]})
    assert [name.partition("://")[0] for name in names_of(source)] == ["s3"]
    (part,) = tokenized(tmp_path, "a", source, plain[0])
    assert shards_of(part) == plain[1]
    (read,) = json.loads(part.read_text())["identity"]["inputs"]
    assert set(read) == {"name", "bytes", "etag"}


def test_one_large_object_is_read_by_several_parts(tmp_path, bucket, plain, monkeypatch):
    monkeypatch.setattr(spans, "WHOLE_BYTES", 64)
    for kind, url in (("jsonl", "s3://texts/plain/a.jsonl"), ("parquet", "s3://texts/rows/a.parquet")):
        source = listed(tmp_path / kind, "a", RECIPE | {"kind": kind, "paths": [url]})
        parts = tokenized(tmp_path / kind, "a", source, plain[0], parts=3)
        counts = [json.loads(part.read_text())["identity"]["train"]["documents"] for part in parts]
        assert sum(map(bool, counts)) > 1  # the end of a small parquet file is its index
        assert sum(counts) + len(held_out(*parts)) == len(ROWS)


def in_the_middle(monkeypatch, kind, do):
    """Calls `do` when 20 records of a file that is read in small blocks were read."""
    real = KINDS[kind].records

    def reader(recipe, span):
        for number, entry in enumerate(real(recipe, span)):
            if number == 20:
                do()
            yield entry

    monkeypatch.setattr(KINDS[kind], "records", reader)
    monkeypatch.setattr(storage, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(storage, "BUFFER_BYTES", 500)
    monkeypatch.setattr(reading, "BUFFER_BYTES", 500)


@pytest.mark.parametrize(
    ("kind", "name"), [("jsonl", "plain/a.jsonl"), ("jsonl", "compressed/a.jsonl.gz"), ("parquet", "rows/a.parquet")]
)
@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_an_object_that_changes_under_way_is_named(tmp_path, bucket, plain, capsys, monkeypatch, kind, name, change):
    source = listed(tmp_path, "a", RECIPE | {"kind": kind, "paths": [f"s3://texts/{name}"]})
    content = bucket.cat_file(f"texts/{name}")
    in_the_middle(
        monkeypatch,
        kind,
        lambda: bucket.rm(f"texts/{name}") if change == "deleted" else bucket.pipe_file(f"texts/{name}", content[::-1]),
    )
    output = tmp_path / "t/00000.json"
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=output)
    assert line.startswith((f"tokenize: s3://texts/{name} cannot be read: ", f"tokenize: s3://texts/{name} changed "))
    assert not list(output.parent.iterdir())


def test_a_server_that_goes_away_while_it_is_read_or_is_not_there_is_one_sentence(tmp_path, plain, capsys, monkeypatch):
    running = serving()
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    system = bucket_at(url_of(running), monkeypatch)
    system.retries = 1
    source = listed(tmp_path, "a", RECIPE | {"paths": ["s3://texts/plain/a.jsonl"]})
    in_the_middle(monkeypatch, "jsonl", running.stop)
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line.startswith("tokenize: s3://texts/plain/a.jsonl cannot be read: ")
    recipe = RECIPE | {"paths": ["s3://other/a.jsonl"]}
    line = refused(capsys, listing, name="a", recipe=recipe, output=tmp_path / "list.json")
    assert line.startswith("list: s3://other/a.jsonl cannot be read: Could not connect to the endpoint URL")
    storage._file_system.cache_clear()


def test_what_inspect_shows_of_a_bucket_is_what_it_shows_of_local_files(tmp_path, bucket, plain, capsys):
    local = {"jsonl": tmp_path / "a.jsonl", "parquet": tmp_path / "a.parquet"}
    local["jsonl"].write_bytes(LINES)
    local["parquet"].write_bytes(bucket.cat_file("texts/rows/a.parquet"))
    for kind, url in (("jsonl", "s3://texts/plain/a.jsonl"), ("parquet", "s3://texts/rows/a.parquet")):
        shown = []
        for path in (local[kind], url):
            capsys.readouterr()
            assert run(inspect, recipe=RECIPE | {"kind": kind, "paths": [str(path)]}, tokenizer=plain[0]) == 0
            shown.append(capsys.readouterr().out.replace(str(path), "PATH"))
        assert shown[0] == shown[1]
        assert f"kept: {len(ROWS)} documents, " in shown[0]


def test_an_object_that_changed_since_it_was_listed_is_named(tmp_path, bucket, plain, capsys):
    url = "s3://texts/plain/a.jsonl"
    source = listed(tmp_path, "a", RECIPE | {"paths": [url]})
    bucket.pipe_file("texts/plain/a.jsonl", LINES[::-1])  # of the same size
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line == f"tokenize: {url} changed after {source} was written; rerun with -R list"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("s3://texts/none/*.jsonl", "sources.a.paths: s3://texts/none/*.jsonl matches"),
        ("nothing://x/a.jsonl", "nothing://x/a.jsonl cannot be read: Protocol not known: nothing"),
        (
            "https://h/a?token=${NONE}",
            "https://h/a?token=${NONE} cannot be read: the environment variable NONE is miss",
        ),
    ],
)
def test_a_url_of_nothing_or_of_a_missing_variable_is_one_sentence(tmp_path, bucket, capsys, url, said):
    line = refused(capsys, listing, name="a", recipe=RECIPE | {"paths": [url]}, output=tmp_path / "list.json")
    assert line.startswith(f"list: {said}")


@pytest.mark.parametrize(
    ("url", "secret"),
    [
        ("https://me:hidden@h/b.jsonl", "a password"),
        ("https://hidden@h/b.jsonl", "a password"),
        ("simplecache::https://me:hidden@h/b.jsonl", "a password"),
        ("https://h/b.jsonl?download=1&token=hidden", "the parameter token"),
        ("https://h/b.jsonl?access%5Ftoken=hidden", "the parameter access%5Ftoken"),
        ("https://h/b.jsonl?token='hidden'", "the parameter token"),
        ("https://h/b.jsonl?token=hidden${TOKEN}", "the parameter token"),
        ("https://h/b.jsonl?X-Amz-Date=1&X-Amz-Signature=hidden", "the parameter X-Amz-Signature"),
        ("https://h/b.jsonl?Expires=1&AWSAccessKeyId=hidden", "the parameter AWSAccessKeyId"),
        ("https://h/b.jsonl?Expires=1&Key-Pair-Id=hidden", "the parameter Key-Pair-Id"),
        ("https://h/b.jsonl?sv=2024&sig=hidden", "the parameter sig"),
        ("https://h/b.jsonl?apiKey=hidden", "the parameter apiKey"),
    ],
)
def test_a_url_with_a_secret_is_refused_before_it_is_listed(tmp_path, capsys, url, secret):
    recipe = RECIPE | {"paths": ["https://h/a.jsonl?tokenizer=a&keyword=b&token=${TOKEN}", url]}
    line = refused(capsys, listing, name="a", recipe=recipe, output=tmp_path / "list.json")
    assert line.startswith(f"list: list.paths[1] has {secret}, which manifests and reports would show: ")
    assert "hidden" not in line


@pytest.fixture
def guarded(monkeypatch):
    """The address of a server that gives its files only to those who have its `token`, and redirects `moved`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            path, query = urlsplit(self.path).path, parse_qs(urlsplit(self.path).query)
            if path.startswith("/moved"):
                self.send_response(302)
                self.send_header("Location", f"/nothing?X-Amz-Signature={running.token}")
                self.end_headers()
                return
            data = running.files.get(path, b"")
            self.send_response((200 if data else 404) if query.get("token") == [running.token] else 403)
            self.send_header("Content-Length", str(len(data)))
            self.send_header("ETag", "e") if running.has_etags else None
            self.end_headers()
            self.wfile.write(data if self.command == "GET" else b"")

        do_HEAD = do_GET

        def log_message(self, *_):
            pass

    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    running.files = {"/a.jsonl.gz": gzip.compress(LINES), "/a.parquet": parquet_of(ROWS)}
    running.token, running.has_etags = "s3cr/t=1", True
    running.address = f"http://127.0.0.1:{running.server_port}"
    threading.Thread(target=running.serve_forever, daemon=True).start()
    yield running
    running.shutdown()
    storage._file_system.cache_clear()


def renewed(guarded, monkeypatch, token):
    """Give the server another token, and the environment too."""
    guarded.token = token
    monkeypatch.setenv("TOKEN", quote(token, safe=""))
    monkeypatch.setenv("SIGNED", f"x=1&token={quote(token, safe='')}")
    storage._file_system.cache_clear()


@pytest.mark.parametrize("has_etags", [True, False])
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("jsonl", "a.jsonl.gz?token=${TOKEN}"),
        ("jsonl", "a.jsonl.gz?${SIGNED}"),
        ("parquet", "a.parquet?token=${TOKEN}"),
    ],
)
def test_a_token_of_the_environment_is_never_kept(tmp_path, guarded, plain, monkeypatch, capfd, kind, name, has_etags):
    url, identities, guarded.has_etags = f"{guarded.address}/{name}", [], has_etags
    for day, token in enumerate(("s3cr/t=1", "s3cr/t=2")):
        renewed(guarded, monkeypatch, token)
        source = listed(tmp_path / f"{day}", "a", RECIPE | {"kind": kind, "paths": [url]})
        identities.append(json.loads(source.read_text()))
        assert names_of(source) == [url]
    assert identities[0] == identities[1]
    (part,) = tokenized(tmp_path, "a", source, plain[0])
    assert shards_of(part) == plain[1]
    kept = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"s3cr" not in kept + "".join(capfd.readouterr()).encode()


def test_an_error_of_a_server_also_after_the_listing_shows_no_token(tmp_path, guarded, plain, monkeypatch, capsys):
    renewed(guarded, monkeypatch, "s3cr/t=1")
    monkeypatch.setenv("OTHER", "s3cr+wrong")
    for name in ("a.jsonl.gz?token=${OTHER}", "moved.jsonl?${SIGNED}"):
        recipe = RECIPE | {"paths": [f"{guarded.address}/{name}"]}
        line = refused(capsys, listing, name="a", recipe=recipe, output=tmp_path / "list.json")
        assert line.startswith(f"list: {guarded.address}/{name} cannot be read: 403, message='Forbidden', url=")
        assert "s3cr" not in line
    url = f"{guarded.address}/a.jsonl.gz?token=${{TOKEN}}"
    source = listed(tmp_path, "a", RECIPE | {"paths": [url]})
    guarded.token = "another"
    line = refused(capsys, tokenize, list=source, tokenizer=plain[0], part=0, output=tmp_path / "t/00000.json")
    assert line == f"tokenize: {url} cannot be read: 403, message='Forbidden', url='{guarded.address}/a.jsonl.gz?...'"


@pytest.mark.parametrize("query", ["?download=1", "?range=[1]"])
def test_a_question_mark_in_a_url_of_http_begins_a_query(query, monkeypatch):
    name = f"https://h/a.jsonl{query}"
    system = mock.Mock(**{"info.return_value": {"name": name, "size": 3, "type": "file", "ETag": "e"}})
    monkeypatch.setattr(storage, "_file_system", lambda url: (system, url))
    assert list(storage.find(name)) == [name]
    system.glob.assert_not_called()
