"""A repair of Snakemake's plugin for Kubernetes (0.5.1), which ends the whole run if one pod fails.

For a failed pod it requests the log of the container before a restart. Pods of jobs are never restarted, so Kubernetes
answers with an error, which the plugin does not expect: Snakemake ends, and `retries` and `keep-going` have no effect.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any

PLUGIN = "snakemake_executor_plugin_kubernetes"
UNAUTHORIZED = 401  # the plugin logs in again


def install() -> None:
    """Let the plugin read the log of the container that failed. Nothing happens where the plugin is not installed."""
    plugin = sys.modules.get(PLUGIN)
    if plugin is None:
        return
    client = plugin.kubernetes.client
    read = client.CoreV1Api.read_namespaced_pod_log
    if not hasattr(read, "__wrapped__"):
        client.CoreV1Api.read_namespaced_pod_log = own_log(read, client.rest.ApiException)


def own_log(read: Callable[..., str], error_type: type[Exception]) -> Callable[..., str]:
    """Return `read` without its option `previous`. A log that is gone with its node is a sentence."""

    @functools.wraps(read)
    def read_own(*arguments: Any, previous: bool = False, **options: Any) -> str:
        try:
            return read(*arguments, **options)
        except error_type as error:
            if getattr(error, "status", None) == UNAUTHORIZED:
                raise
            return f"the log of the pod cannot be read: {getattr(error, 'reason', error)}"

    return read_own
