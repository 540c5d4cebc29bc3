"""A server on loopback that answers as the Hugging Face Hub: its file system reads data sets, uploads write models.

A repository has commits, branches that point at them, and files; those from LFS_BYTES on are answered by a redirection
to another URL, as the Hub does it. `Hub.repositories[name]` may be changed while the server runs.
"""

import base64
import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

LFS_BYTES = 1000
PAGE = 3  # entries of a listing that are answered at once


def _sha1(*parts):
    return hashlib.sha1(b"\0".join(parts)).hexdigest()


@dataclass
class Repository:
    """A data set: `files` {path: bytes} of each commit, and the branches. `gated`: only who has a token may read."""

    gated: bool = False
    private: bool = False
    commits: dict = field(default_factory=dict)
    branches: dict = field(default_factory=dict)

    def commit(self, files, branch="main"):
        """Make a commit of all files; returns its name, 40 hexadecimal digits."""
        name = _sha1(*(part for path, content in sorted(files.items()) for part in (path.encode(), content)))
        self.commits[name] = dict(files)
        self.branches[branch] = name
        return name

    def at(self, revision):
        """The files at a branch or commit; None if it does not exist."""
        return self.commits.get(self.branches.get(revision, revision))


class Hub(ThreadingHTTPServer):
    """The server. `asked`: (method, path) of all requests. `token`: the one that it knows."""

    daemon_threads = True
    token = "hf_right"

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories, self.asked = {}, []
        self.uploaded, self.messages, self.read_only = {}, [], set()  # large files by sha256; those of commits
        self.before_answer = None  # is called with the path of a file whose bytes are asked for
        self.held = None  # of a file it has only so many bytes, whatever its listing says

    @property
    def address(self):
        """Its URL, for HF_ENDPOINT."""
        return f"http://127.0.0.1:{self.server_port}"


@contextlib.contextmanager
def running():
    """A Hub that answers while the block runs."""
    hub = Hub()
    thread = threading.Thread(target=hub.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        thread.join()
        hub.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        url = urlsplit(self.path)
        self.server.asked.append((self.command, url.path))
        for pattern, answer in ROUTES.items():
            if found := re.fullmatch(pattern, url.path):
                answer(self, *map(unquote, found.groups("")), query=parse_qs(url.query))
                return
        self._refuse(404, "NotFound", "Sorry, we can't find the page you are looking for.")

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self, status, content, **headers):
        content = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **headers, "Content-Length": len(content)}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.wfile.write(content if self.command != "HEAD" else b"")

    def _refuse(self, status, code, message):
        headers = {"X-Error-Code": code, "X-Error-Message": message, "X-Request-Id": "Root=1-abc"}
        self._answer(status, {"error": message}, **headers)

    def _files(self, name, revision):
        """The files of a repository at a revision, None where a refusal was answered."""
        repository = self.server.repositories.get(name)
        if repository is None:  # the Hub does not say to strangers whether it is private
            self._refuse(401, "RepoNotFound", "Invalid username or password.")
            return None
        files = repository.at(revision or "main")
        if files is None:
            self._refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return files

    def _info(self, name, revision, **_):
        if self._files(name, revision) is not None:
            repository = self.server.repositories[name]
            commit = repository.branches.get(revision or "main", revision)
            described = {"id": name, "sha": commit, "private": repository.private, "gated": repository.gated}
            self._answer(200, described | {"siblings": []})

    def _tree(self, name, revision, path, query, **_):
        files = self._files(name, revision)
        if files is None:
            return
        prefix = f"{path}/" if path else ""
        below = {file: content for file, content in files.items() if file.startswith(prefix)}
        if not below:
            self._refuse(404, "EntryNotFound", f'"{path}" does not exist on "{revision}"')
            return
        entries = {}
        for file in sorted(below):
            parts = file[len(prefix) :].split("/")
            for depth in range(1, len(parts)):
                folder = prefix + "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "path": folder, "oid": _sha1(folder.encode()), "size": 0}
            entries[file] = _entry(file, below[file])
        if query["recursive"] != ["true"]:
            entries = {entry: facts for entry, facts in entries.items() if "/" not in entry[len(prefix) :]}
        first = int(query.get("cursor", ["0"])[0])
        more = {}
        if first + PAGE < len(entries):
            address = f"{self.server.address}{urlsplit(self.path).path}?recursive={query['recursive'][0]}"
            more["Link"] = f'<{address}&cursor={first + PAGE}>; rel="next"'
        self._answer(200, list(entries.values())[first : first + PAGE], **more)

    def _paths(self, name, revision, **_):
        files = self._files(name, revision)
        if files is not None:
            paths = parse_qs(self.body.decode())["paths"]
            self._answer(200, [_entry(path, files[path]) for path in paths if path in files])

    def _resolve(self, name, revision, path, **_):
        if self.server.before_answer:
            self.server.before_answer(path)
        files = self._files(name, revision)
        if files is None:
            return
        if self.server.repositories[name].gated and self.headers["Authorization"] != f"Bearer {self.server.token}":
            message = f"Access to dataset {name} is restricted. You must have access to it and be authenticated to "
            self._refuse(401, "GatedRepo", f"{message}access it. Please log in.")
        elif path not in files:
            self._refuse(404, "EntryNotFound", "Entry not found")
        elif len(files[path]) >= LFS_BYTES:
            self._answer(302, b"", Location=f"{self.server.address}/cdn/{name}/{revision}/{path}")
        else:
            self._send(files[path])

    def _cdn(self, name, revision, path, **_):
        self._send(self.server.repositories[name].at(revision)[path])

    def _send(self, content):
        content = content[: self.server.held]
        first, last = map(int, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"]).groups())
        if first >= len(content):
            self._answer(416, b"", Content_Range=f"bytes */{len(content)}")
        else:
            self._answer(206, content[first : last + 1], Content_Range=f"bytes {first}-{last}/{len(content)}")

    def _may_write(self, name):
        """Return whether the request may write a repository; refuses it if not."""
        if self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._answer(401, {"error": "Invalid credentials"}, X_Error_Message="Invalid credentials")
            return False
        if name in self.server.read_only:
            self._refuse(403, "Forbidden", "You don't have the rights to create a model under this namespace")
            return False
        return True

    def _create(self, **_):
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if not self._may_write(name):
            return
        url = {"url": f"{self.server.address}/{name}"}
        if name in self.server.repositories:
            self._answer(409, url | {"error": "You already created this model repo"})
            return
        made = self.server.repositories[name] = Repository(private=asked.get("visibility") == "private")
        made.commit({".gitattributes": b"*.safetensors filter=lfs"})
        self._answer(200, url)

    def _branch(self, name, branch, **_):
        repository = self.server.repositories[name]
        known = branch in repository.branches
        repository.branches.setdefault(branch, repository.branches["main"])
        self._answer(409 if known else 200, {})

    def _validate(self, **_):
        self._answer(200, {"errors": [], "warnings": []})

    def _preupload(self, name, revision, **_):
        if self._may_write(name):
            modes = []
            for file in json.loads(self.body)["files"]:
                mode = "lfs" if file["size"] >= LFS_BYTES else "regular"
                modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
            self._answer(200, {"files": modes})

    def _batch(self, name, **_):
        objects = []
        for asked in json.loads(self.body)["objects"]:
            if asked["oid"] not in self.server.uploaded:
                asked["actions"] = {"upload": {"href": f"{self.server.address}/upload/{asked['oid']}"}}
            objects.append(asked)
        self._answer(200, {"transfer": "basic", "objects": objects})

    def _upload(self, oid, **_):
        assert hashlib.sha256(self.body).hexdigest() == oid
        self.server.uploaded[oid] = self.body
        self._answer(200, b"")

    def _commit(self, name, revision, **_):
        if not self._may_write(name):
            return
        repository = self.server.repositories[name]
        files = dict(repository.at(revision))
        for line in self.body.splitlines():
            key, value = (json.loads(line)[part] for part in ("key", "value"))
            if key == "header":
                self.server.messages.append(value)
            elif key == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif key == "lfsFile":
                files[value["path"]] = self.server.uploaded[value["oid"]]
            else:
                assert key == "deletedFile"
                del files[value["path"]]
        oid = repository.commit(files, revision)
        self._answer(200, {"commitUrl": f"{self.server.address}/{name}/commit/{oid}", "commitOid": oid})


def _entry(path, content):
    entry = {"type": "file", "path": path, "size": len(content), "oid": _sha1(content)}
    if len(content) >= LFS_BYTES:
        lfs = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 130}
        entry |= {"lfs": lfs, "oid": _sha1(b"pointer", content)}
    return entry


NAME = r"([^/]+/[^/]+)"
ROUTES = {
    rf"/api/(?:datasets|models)/{NAME}": lambda handler, name, **options: handler._info(name, "", **options),
    rf"/api/datasets/{NAME}/revision/([^/]+)": _Handler._info,
    rf"/api/(?:datasets|models)/{NAME}/tree/([^/]+)(?:/(.*))?": _Handler._tree,
    rf"/api/datasets/{NAME}/paths-info/([^/]+)": _Handler._paths,
    rf"/datasets/{NAME}/resolve/([^/]+)/(.*)": _Handler._resolve,
    rf"/cdn/{NAME}/([^/]+)/(.*)": _Handler._cdn,
    r"/api/repos/create": _Handler._create,
    r"/api/validate-yaml": _Handler._validate,
    rf"/api/models/{NAME}/branch/([^/]+)": _Handler._branch,
    rf"/api/models/{NAME}/preupload/([^/]+)": _Handler._preupload,
    rf"/{NAME}\.git/info/lfs/objects/batch": _Handler._batch,
    r"/upload/([0-9a-f]{64})": _Handler._upload,
    rf"/api/models/{NAME}/commit/([^/]+)": _Handler._commit,
}
