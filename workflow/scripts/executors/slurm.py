"""Snakemake's Slurm executor, kept from losing its jobs and the reasons of their deaths.

The plugin (2.8.0) forgets all its jobs if one status query has no answer, and waits for ever for a job that squeue no
longer lists. It prints the log of the rule, which is empty if a job dies earlier. docs/patches has changes for the
plugin itself; docs/cluster.md says which code here goes away with them.
"""

from __future__ import annotations

import asyncio
import getpass
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import snakemake_executor_plugin_slurm as slurm
from snakemake_interface_executor_plugins.registry import ExecutorPluginRegistry

from scripts.slurm.jobs import EndedJob, last_lines, look_up, nodes_of_partition

LONGEST_SECONDS, SHORTEST_SECONDS = 30, 2
"""Between two status queries. The plugin's own interval grows to 180 s, in which nobody notices that a job ended."""

ENDING_SECONDS = 60
"""A job that has made its outputs ends within this time."""

MISSING_POLLS = 2
"""Answers of squeue in a row without a job, after which Slurm has forgotten it."""

EARLY_SECONDS = 60
"""A job that ends this soon without a line from its stage never started it."""

query_status, submit_command = slurm.query_job_status, slurm.get_submit_command


class NoAnswer(Exception):
    """A status query that Slurm did not answer."""


class Executor(slurm.Executor):
    """The plugin's executor. A job stays its job until Slurm reports its end."""

    _polled: tuple[Any, ...] = ()
    _answering = True

    def __post_init__(self, *arguments: Any, **options: Any) -> None:
        """Initialize, as the plugin does."""
        self._missing: Counter[str] = Counter()
        self._early_deaths: Counter[str] = Counter()
        self._submitted: dict[Any, float] = {}
        super().__post_init__(*arguments, **options)
        # The plugin calls functions of its module by these names.
        slurm.query_job_status = self._query
        slurm.get_submit_command = self._submit_command
        # It would keep jobs of an array until all that are ready have come. With `max-jobs-per-timespan` they never do.
        slurm.pending_jobs_for_rule = lambda *_: 0

    def _submit_command(self, job: Any, params: Mapping[str, Any], **options: Any) -> str:
        """Return the command with a name of the job's own: rule and wildcards, as in pretrain_base_00001000."""
        wildcards = "" if job.name in self.array_jobs else slurm.get_job_wildcards(job)  # an array has one name
        words = (self.workflow.executor_settings.jobname_prefix, job.name, wildcards)
        name = re.sub(r"[^\w.-]+", "_", "_".join(filter(None, words)))
        return submit_command(job, {**params, "run_uuid": name}, **options)

    @property
    def next_seconds_between_status_checks(self) -> float:
        """Seconds until the next status query."""
        return min(super().next_seconds_between_status_checks, LONGEST_SECONDS)

    @next_seconds_between_status_checks.setter
    def next_seconds_between_status_checks(self, value: float) -> None:
        self._next_seconds_between_status_checks = value

    async def sleep(self) -> None:
        """Wait for the next status query; not long if a job is about to end, as its new outputs show, or all ended."""
        end = time.monotonic() + self.next_seconds_between_status_checks
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(left, SHORTEST_SECONDS))
            if not self.wait or any(self._is_ending(info.job) for info in self.active_jobs):
                return

    def _is_ending(self, job: Any) -> bool:
        try:
            ages = [time.time() - path.stat().st_mtime for path in map(Path, job.output) if self._is_new(path, job)]
        except OSError:  # not made yet
            return False
        return len(ages) == len(job.output) > 0 and max(ages) < ENDING_SECONDS

    async def check_active_jobs(self, active_jobs: list[Any]) -> AsyncIterator[Any]:
        """Yield the jobs that still run; all of them if Slurm does not answer."""
        self._polled = tuple(active_jobs)
        try:
            async for job in super().check_active_jobs(active_jobs):
                yield job
        except NoAnswer as error:  # before the plugin looked at the first job
            if self._answering:
                self.logger.warning(f"Slurm does not answer `{error}`; its jobs are polled until it does.")
            self._answering = False
            for job in active_jobs:
                yield job
        finally:
            self._polled = ()

    async def _query(self, command: str, logger: Any) -> tuple[Mapping[str, str], float]:
        # jobs have names of their own; JobIdRaw has no numbers of an array's tasks
        command = command.replace(f"--name {self.run_uuid}", f"--user {getpass.getuser()}").replace("JobIdRaw", "JobID")
        states, seconds = await query_status(command, logger)
        if states is None:
            raise NoAnswer(command.partition(" ")[0])
        if not self._answering:
            self.logger.warning("Slurm answers again.")
        self._answering = True
        # squeue prints the pending tasks of an array as one line, for example 123_[4-200%50]
        states |= {key.partition("_[")[0]: state for key, state in states.items() if "_[" in key}
        return states | (self._forgotten(states) if command.startswith("squeue") else {}), seconds

    def _forgotten(self, states: Mapping[str, str]) -> dict[str, str]:
        """Return states of the jobs that squeue no longer lists: their outputs decide."""
        if self._submitted_job_clusters:  # squeue lists only this cluster's
            return {}
        jobs = {info.external_jobid: info.job for info in self._polled}
        gone = {job for job in jobs if not states.keys() & set(slurm._status_lookup_ids(job))}
        self._missing = Counter({job: self._missing[job] + 1 for job in gone})
        return {
            job: "FAILED" if self._has_old_output(jobs[job]) else "UNKNOWN"  # the plugin's word for finished
            for job in gone
            if self._missing[job] >= MISSING_POLLS
        }

    def _has_old_output(self, job: Any) -> bool:
        return any(path.exists() and not self._is_new(path, job) for path in map(Path, job.output))

    def _began(self, job: Any) -> bool:
        """Return whether the stage of a job wrote to its log."""
        return any(path.exists() and path.stat().st_size and self._is_new(path, job) for path in map(Path, job.log))

    def _is_new(self, path: Path, job: Any) -> bool:
        return path.stat().st_mtime >= self._submitted[job.jobid]

    def run_job_pre(self, job: Any) -> None:
        """Note when a job is submitted."""
        self._submitted[job.jobid] = time.time()
        super().run_job_pre(job)

    def report_job_submission(self, job_info: Any, register_job: bool = True) -> None:
        """Correct the path of the log of an array's task: sbatch has one for all tasks, without wildcards."""
        if "_" in job_info.external_jobid:
            log = job_info.aux["slurm_logfile"]
            job_info.aux["slurm_logfile"] = self.slurm_logdir / f"rule_{job_info.job.name}" / log.name
        super().report_job_submission(job_info, register_job)

    def cancel_jobs(self, active_jobs: list[Any]) -> None:
        """Cancel all jobs; the base class has an empty list while it polls."""
        super().cancel_jobs(list(active_jobs) or list(self._polled))

    def report_job_error(self, job_info: Any, msg: str | None = None, **options: Any) -> None:
        """Print what Slurm and the job's own log say, and the log of the rule as the last thing."""
        ended = look_up(job_info.external_jobid) if job_info.external_jobid else None
        if ended is not None:
            lines = last_lines(job_info.aux["slurm_logfile"])
            if ended.may_be_its_nodes_fault(lines) and ended.seconds <= EARLY_SECONDS and not self._began(job_info.job):
                self._exclude_node(ended)
            if ended.state == "CANCELLED":
                # the last attempt; the setter would evaluate the job's resources for it
                job_info.job._attempt = job_info.job.restart_times + 1
                lines = ["It was cancelled, so it is not submitted again by this run.", *lines]
            msg = "\n        ".join([ended.describe(), *lines, ""])
            options.pop("aux_logs", None)  # Snakemake would not show them after a rule's log that is empty or missing
        super().report_job_error(job_info, msg, **options)

    def _exclude_node(self, ended: EndedJob) -> None:
        """Exclude a node on which two jobs died before their stage began; it is idle at once, and takes the next."""
        self._early_deaths[ended.nodes] += 1
        if self._early_deaths[ended.nodes] != 2:
            return
        twice = f"Two jobs ended on node {ended.nodes} before their stages began"
        nodes = nodes_of_partition(ended.partition)
        if 2 * len(self._failed_nodes | {ended.nodes}) <= len(nodes):
            self._failed_nodes.add(ended.nodes)
            self.logger.warning(f"{twice}: it gets no more jobs of this run.")
        else:
            self.logger.warning(
                f"{twice}. If the node is the cause, add it to `slurm-exclude-failed-nodes` of the profile."
            )


def install() -> None:
    """Let Snakemake use this executor for `executor: slurm`."""
    ExecutorPluginRegistry().get_plugin("slurm").executor = Executor
