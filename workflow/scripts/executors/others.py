"""Snakemake's executor cluster-generic with commands of this checkout, for profiles/pbs, and a repair of Kubernetes'.

The plugin for Kubernetes (0.5.1) ends the whole run if one pod fails: it requests the log of the container before a
restart. Pods of jobs are never restarted, so Kubernetes answers with an error, which the plugin does not expect, and
`retries` and `keep-going` have no effect.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_cluster_generic as generic
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

PLUGIN = "snakemake_executor_plugin_kubernetes"
UNAUTHORIZED = 401  # the plugin logs in again


def install_kubernetes() -> None:
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


CANCEL_SECONDS = 60


class GenericExecutor(generic.Executor):
    """The plugin's executor, whose polls lose no job.

    The plugin (1.0.9) ends Snakemake if one poll fails or Ctrl-C reaches it, and does not cancel jobs while it polls.
    """

    _polled: tuple[Any, ...] = ()

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that still run. Without an answer, a job is polled again."""
        if not self.workflow.executor_settings.status_cmd:
            async for info in super().check_active_jobs(active_jobs):
                yield info
            return
        self._polled = tuple(active_jobs)
        for info in active_jobs:
            async with self.status_rate_limiter:
                status = self._status(info.external_jobid)
            if status == "success":
                self.report_job_success(info)
            elif status == "failed":
                self.report_job_error(info)
            else:
                yield info
        self._polled = ()

    def _status(self, job: str) -> str:
        command = f"{self.workflow.executor_settings.status_cmd} {shlex.quote(job)}"
        # in a session of its own, which Ctrl-C does not reach
        done = subprocess.run(  # noqa: S602 (a command of the profile)
            command, shell=True, stdout=subprocess.PIPE, text=True, start_new_session=True, check=False
        )
        return done.stdout.strip()

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel jobs by one call of a shell command; the plugin takes no command with arguments, and waits 2 s."""
        jobs = [info.external_jobid for info in active_jobs or self._polled if info.external_jobid]
        command = self.workflow.executor_settings.cancel_cmd
        if not command:
            super().cancel_jobs(active_jobs)
        elif jobs:
            line = f"{command} {shlex.join(jobs)}"
            with contextlib.suppress(subprocess.TimeoutExpired):
                subprocess.run(line, shell=True, timeout=CANCEL_SECONDS, start_new_session=True, check=False)  # noqa: S602


def install_generic(home: Path) -> None:
    """Let Snakemake use this executor for `executor: cluster-generic`.

    Commands in profiles find the checkout `home` as $CARAVAN, and its Python as $CARAVAN_PYTHON.
    """
    os.environ.update(CARAVAN=str(home), CARAVAN_PYTHON=sys.executable)
    ExecutorPluginRegistry().get_plugin("cluster-generic").executor = GenericExecutor
