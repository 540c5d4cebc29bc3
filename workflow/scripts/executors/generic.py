"""Snakemake's executor cluster-generic with commands of this checkout, for profiles/pbs."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_cluster_generic as generic
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

CANCEL_SECONDS = 60


class Executor(generic.Executor):
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
        done = subprocess.run(
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
                subprocess.run(line, shell=True, timeout=CANCEL_SECONDS, start_new_session=True, check=False)


def install(home: Path) -> None:
    """Let Snakemake use this executor for `executor: cluster-generic`.

    Commands in profiles find the checkout `home` as $CARAVAN, and its Python as $CARAVAN_PYTHON.
    """
    os.environ.update(CARAVAN=str(home), CARAVAN_PYTHON=sys.executable)
    ExecutorPluginRegistry().get_plugin("cluster-generic").executor = Executor
