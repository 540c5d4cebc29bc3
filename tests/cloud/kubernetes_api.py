"""A server that answers as the API of Kubernetes does to Snakemake's plugin, and runs the pods of jobs as processes.

Each pod has an empty working directory in place of the image's, which is deleted after it, and only the environment
that the pod's specification gives, with this Python on PATH in place of an image. Volumes are directories of this
machine at their mount path.
"""

import base64
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TIMEOUT_SECONDS = 200
# Snakemake installs the storage plugin in each pod; here it is installed already
PIP = '#!/bin/sh\n[ "$1" = install ] && echo "$@" >> "$INSTALLED"\n'


class Cluster:
    """Jobs, pods and secrets of one namespace, and the requests that were made."""

    def __init__(self, folder):
        self.folder, self.requests, self.secrets, self.jobs, self.pods = folder, set(), {}, {}, {}
        self.lost = ""  # a rule whose next pod is lost, as that of a node that is taken away
        (folder / "bin").mkdir(parents=True)
        (folder / "bin/pip").write_text(PIP)
        (folder / "bin/pip").chmod(0o755)

    def start(self, job):
        """Start the pod of a job."""
        name = job["metadata"]["name"]
        self.jobs[name] = job | {"status": {}}
        self.pods[name] = {"code": None, "log": ""}
        threading.Thread(target=self._run, args=(name,), daemon=True).start()

    def _run(self, name):
        pod = self.pods[name]
        (container,) = self.jobs[name]["spec"]["template"]["spec"]["containers"]
        environment = {"PATH": f"{self.folder}/bin:{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin"}
        environment |= {"HOME": "/nonexistent", "INSTALLED": f"{self.folder}/installed", "CUDA_VISIBLE_DEVICES": ""}
        for variable in container.get("env", ()):
            reference = variable["valueFrom"]["secretKeyRef"]
            value = self.secrets[reference["name"]]["data"][reference["key"]]
            environment[variable["name"]] = base64.b64decode(value).decode()
        command = [*container["command"], *container["args"]]
        if self.lost and f"--allowed-rules {self.lost} " in command[-1]:
            self.lost, command = "", ["sh", "-c", "echo lost; exit 137"]
        workdir = tempfile.mkdtemp(prefix="pod.", dir=self.folder)
        done = subprocess.run(
            command,
            cwd=workdir,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        shutil.rmtree(workdir)
        pod["log"], pod["code"] = done.stdout, done.returncode
        self.jobs[name]["status"] = {"succeeded": 1} if done.returncode == 0 else {"failed": 1}

    def pods_of(self, name):
        """Return the list of the pods of a job, as the API has it."""
        code = self.pods[name]["code"]
        state = {"running": {}} if code is None else {"terminated": {"exitCode": code}}
        status = {"name": "snakemake", "image": "", "imageID": "", "ready": True, "restartCount": 0, "state": state}
        pod = {"metadata": {"name": f"{name}-pod"}, "status": {"containerStatuses": [status]}}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [pod]}


def handler_of(cluster):
    """Return the class of request handlers of a cluster."""

    class Handler(BaseHTTPRequestHandler):
        def answer(self, body, code=200):
            data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def route(self):
            """Return (kind, name, subresource) of the path; the name of a list is that of its job."""
            path, _, query = self.path.partition("?")
            words = re.search(r"/namespaces/default/(.*)", path)[1].split("/")
            kind, name, sub = [*words, "", ""][:3]
            if "job-name%3D" in query:
                name = query.partition("job-name%3D")[2]
            verbs = {"POST": "create", "DELETE": "delete", "GET": "get" if len(words) > 1 else "list"}
            cluster.requests.add((verbs[self.command], f"{kind}/{sub}".rstrip("/")))
            return kind, name, sub

        def do_POST(self):
            kind, _, _ = self.route()
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if kind == "secrets":
                cluster.secrets[body["metadata"]["name"]] = body
            else:
                cluster.start(body)
            self.answer(body, 201)

        def do_GET(self):
            kind, name, sub = self.route()
            if kind == "jobs":
                self.answer({"kind": "Job", "apiVersion": "batch/v1"} | cluster.jobs[name])
            elif sub == "log" and "previous=True" in self.path:  # these pods are never restarted
                self.answer({"kind": "Status", "code": 400, "message": "previous terminated container not found"}, 400)
            elif sub == "log":
                self.answer(cluster.pods[name.removesuffix("-pod")]["log"])
            else:
                self.answer(cluster.pods_of(name))

        def do_DELETE(self):
            self.route()
            self.answer({"kind": "Status", "apiVersion": "v1", "status": "Success"})

        def log_message(self, *_):
            pass

    return Handler


def serve(folder):
    """Start a cluster; return (cluster, path of its kubeconfig, server)."""
    cluster = Cluster(folder)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(cluster))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}],
        "users": [{"name": "test", "user": {}}],
    }
    (folder / "kubeconfig").write_text(json.dumps(config))
    return cluster, folder / "kubeconfig", server
