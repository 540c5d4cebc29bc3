"""Snakemake's executor cluster-generic with commands of this checkout, for profiles/pbs."""

from __future__ import annotations

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
    """The plugin's executor. Ctrl-C cancels all jobs, also while it polls them (1.0.9 would leave those)."""

    _polled: tuple[Any, ...] = ()

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that still run."""
        self._polled = tuple(active_jobs)
        async for job in super().check_active_jobs(active_jobs):
            yield job
        self._polled = ()

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel jobs by one call of a shell command; the plugin takes no command with arguments, and waits 2 s."""
        jobs = [info.external_jobid for info in active_jobs or self._polled if info.external_jobid]
        command = self.workflow.executor_settings.cancel_cmd
        if not command:
            super().cancel_jobs(active_jobs)
        elif jobs:
            subprocess.run(f"{command} {shlex.join(jobs)}", shell=True, timeout=CANCEL_SECONDS, check=False)


def install(home: Path) -> None:
    """Let Snakemake use this executor for `executor: cluster-generic`.

    Commands in profiles find the checkout `home` as $CARAVAN, and its Python as $CARAVAN_PYTHON.
    """
    os.environ.update(CARAVAN=str(home), CARAVAN_PYTHON=sys.executable)
    ExecutorPluginRegistry().get_plugin("cluster-generic").executor = Executor
