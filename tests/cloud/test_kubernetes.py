"""The workflow on Kubernetes with results on S3: the real plugins, profile and stages, and servers for both."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import s3fs
import yaml

from tests.cloud import kubernetes_api
from tests.workflow.checkout import COPIED, HOME

pytest.importorskip("snakemake_executor_plugin_kubernetes", reason="`make test-cloud` installs it")
pytest.importorskip("snakemake_storage_plugin_s3", reason="`make test-cloud` installs it")

CONFIG = """
sources:
  a: {{kind: jsonl, paths: [{volume}/texts/a.jsonl], validation: 0.3}}
  b: {{kind: jsonl, paths: ["s3://lake/texts/b.jsonl"], validation: 0.3}}
tokenizers:
  main: {{vocab_size: 300, sample: {{a: 1}}}}
corpora:
  main: {{tokenizer: main, sources: [a, b], tokenize: {{parts: 1}}}}
suites:
  validation: {{tasks: [bits_per_byte], bytes_per_source: 2000}}
runs:
  tiny:
    corpus: main
    model: {{num_hidden_layers: 1, hidden_size: 32, num_attention_heads: 2, intermediate_size: 48,
      max_position_embeddings: 64}}
    pretrain:
      steps: 4
      milestones: [2, 4]
      weights: {{a: 1, b: 1}}
      seq_len: 64
      global_batch_size: 2
      dtype: float32
      optimizer: {{learning_rate: 5e-3}}
      validation: {{tokens: 500}}
    suites: [validation]
"""
STORAGE = {"SNAKEMAKE_STORAGE_S3_ACCESS_KEY": "key", "SNAKEMAKE_STORAGE_S3_SECRET_KEY": "secret"}
SOURCES = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret"}
PAYLOAD = (".arrow", ".distcp", ".safetensors", ".model")


def rows(first):
    """Return 300 rows of JSON lines."""
    lines = [f"caravan {n} left the well at dawn, and {n * 7} camels drank." for n in range(first, first + 300)]
    return "".join(json.dumps({"text": line}) + "\n" for line in lines)


@pytest.fixture(scope="module")
def bucket():
    """An S3 server whose bucket `lake` has a source: (its URL, a client)."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    url = "http://{}:{}".format(*server.get_host_and_port())
    s3 = s3fs.S3FileSystem(key="key", secret="secret", endpoint_url=url, use_listings_cache=False)
    s3.mkdir("lake")
    s3.pipe_file("lake/texts/b.jsonl", rows(1000).encode())
    yield url, s3
    server.stop()


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """(A directory with a checkout and a volume with the user's files, a cluster, its kubeconfig)."""
    place = tmp_path_factory.mktemp("cloud")
    volume, checkout = place / "volume", place / "checkout"
    (volume / "texts").mkdir(parents=True)
    (volume / "texts/a.jsonl").write_text(rows(0))
    checkout.mkdir()
    for name in COPIED:
        copy = shutil.copytree if (HOME / name).is_dir() else shutil.copy2
        copy(HOME / name, checkout / name)
    (checkout / "mine.yaml").write_text(CONFIG.format(volume=volume))
    profile = checkout / "profiles/kubernetes/profile.yaml"
    text = profile.read_text().replace("s3://my-bucket/my-project", "s3://lake/mine")
    profile.write_text(text.replace(":/caravan", f":{volume}").replace("prefix: /caravan", f"prefix: {volume}"))
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=checkout, check=True)
    cluster, kubeconfig, server = kubernetes_api.serve(place / "cluster")
    yield place, cluster, kubeconfig
    server.shutdown()


def run(place, url, *command):
    """Run a Python module where Snakemake's own pod would be: in the checkout, with the volume."""
    folder, _, kubeconfig = place
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "AWS"))}
    environment |= STORAGE | {"SNAKEMAKE_STORAGE_S3_ENDPOINT_URL": url, "KUBECONFIG": str(kubeconfig)}
    environment |= SOURCES | {"AWS_ENDPOINT_URL": url, "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [sys.executable, "-m", *map(str, command)],
        cwd=folder / "checkout",
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
    )


def snakemake(place, url, *arguments):
    """Run Snakemake with the profile."""
    variables = ["--envvars", *SOURCES, "AWS_ENDPOINT_URL", "--seconds-between-status-checks", 1]
    given = ["--profile", "profiles/kubernetes", *arguments, "--configfile", "mine.yaml", *variables]
    return run(place, url, "snakemake", *given)


def names(folder, pattern):
    """Return the names of files below a folder, relative to it."""
    return {str(path.relative_to(folder)) for path in folder.rglob(pattern) if path.is_file()}


def may(cluster):
    """Return the requests that the role in profiles/kubernetes/cluster.yaml does not allow."""
    documents = yaml.safe_load_all((HOME / "profiles/kubernetes/cluster.yaml").read_text(encoding="utf-8"))
    (role,) = (document for document in documents if document["kind"] == "Role")
    allowed = {(verb, kind) for rule in role["rules"] for verb in rule["verbs"] for kind in rule["resources"]}
    return cluster.requests - allowed


def test_a_dry_run_plans_a_file_in_the_bucket_and_starts_no_pod(place, bucket):
    done = snakemake(place, bucket[0], "-n", "results/runs/tiny/models/00000002.json")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "output: s3://lake/mine/results/runs/tiny/models/00000002.json" in done.stdout
    assert place[1].jobs == {}
    done = snakemake(place, bucket[0], "-n", "results/runs/tiny/models/00000003.json")
    assert done.returncode == 1
    assert "run tiny has no milestone 3; its milestones: 2, 4" in done.stderr


@pytest.mark.long
def test_jobs_in_pods_share_a_bucket_and_a_volume_and_one_that_is_lost_starts_again(place, bucket):
    (folder, cluster, _), (url, s3) = place, bucket
    cluster.lost = "pretrain"
    done = snakemake(place, url, "all")
    logs = "".join(pod["log"][-3000:] for pod in cluster.pods.values() if pod["code"])
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-3000:] + logs
    assert done.stdout.count("Trying to restart job") + done.stderr.count("Trying to restart job") == 1

    stored = {name.removeprefix("lake/mine/") for name in s3.find("lake/mine")}
    local = names(folder / "volume/s3/lake/mine", "*")
    made = {"results/scores.csv", "results/summary.txt", "results/runs/tiny/export/00000004/card.json"}
    assert made < stored <= local, "the volume has all that the bucket has"
    assert not [name for name in stored if name.endswith(PAYLOAD)]
    assert {os.path.splitext(name)[1] for name in local} >= {*PAYLOAD}
    assert not (folder / "checkout/results").exists()

    containers = [job["spec"]["template"]["spec"]["containers"][0] for job in cluster.jobs.values()]
    training = [container for container in containers if "--allowed-rules pretrain " in container["args"][1]]
    assert len(training) == 3, "two milestones, and the pod that was lost"
    for asked in (container["resources"] for container in training):
        assert asked["limits"]["nvidia.com/gpu"] == asked["requests"]["nvidia.com/gpu"] == "1"
    runs = {name.split("/")[4] for name in local if name.startswith("results/runs/tiny/train/")}
    assert len(runs) == 1, "the second milestone resumed from the first, in another pod"
    assert may(cluster) == set()

    again = snakemake(place, url, "all")
    assert again.returncode == 0
    assert "Nothing to be done" in again.stdout + again.stderr
    export = folder / "volume/s3/lake/mine/results/runs/tiny/export/00000004/manifest.json"
    verified = run(place, url, "tools.verify", export)
    assert verified.returncode == 0, verified.stderr
