"""A private Slurm on this machine: a controller, and nodes with fake GPUs, all below one directory.

No munge, no cgroups, no systemd, and no root needed; accounting where it is asked for. `python -m tests.slurm.cluster`
starts one to try things on, and says how.
"""

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.helpers import processes
from tests.helpers.ports import free_ports
from tests.slurm.accounting import Accounting, which

HOME = Path(__file__).resolve().parents[2]
# The launcher connects to the first of the node names, so they are addresses.
NODES = ("127.0.0.11", "127.0.0.12", "127.0.0.13", "127.0.0.14")
GPUS_PER_NODE = 4
NEEDED = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "scancel", "sinfo")
CLIENTS = (*NEEDED[2:], "sacct", "sacctmgr", "sshare", "salloc")
MARK = "CARAVAN_TEST_CLUSTER"
"""An environment variable of all processes of a cluster: its directory."""

# config_overrides: nodes may claim more than this machine has. ReturnToService: a node that comes back is used again.
# cred_expire: a requeued job waits this long, by default 120 s. proctrack/linuxproc and task/none work without cgroups.
# FirstJobId: workflow/launch takes its port from the id of a job, and another cluster may be on this machine.
SLURM_CONF = """
ClusterName=caravan
SlurmctldHost=localhost({address})
SlurmctldPort={port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
StateSaveLocation={prefix}/state
SlurmdSpoolDir={prefix}/spool/%n
SlurmctldPidFile={prefix}/run/slurmctld.pid
SlurmdPidFile={prefix}/run/%n.pid
SlurmctldLogFile={logs}/slurmctld.log
SlurmdLogFile={logs}/%n.log
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
GresTypes=gpu
ReturnToService=2
MinJobAge=300
FirstJobId={first_job}
KillWait=5
SlurmdTimeout=10
NodeName=DEFAULT CPUs=32 RealMemory=256000 Gres=gpu:{gpus} State=UNKNOWN
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE DefaultTime=10
PartitionName=short Nodes=ALL MaxTime=60 DefaultTime=10
{settings}
"""
# Slurm counts a GPU only if its file is a character device.
GRES_CONF = "AutoDetect=off\n" + "".join(f"Name=gpu File=/dev/{name}\n" for name in ("null", "zero", "full", "urandom"))
# A slurmd must load a cgroup plugin; v1 starts without cgroups, automatic detection does not.
CGROUP_CONF = "CgroupPlugin=cgroup/v1\n"


def lacking(needed=NEEDED):
    """Return the needed commands that are not installed."""
    return [name for name in needed if which(name) is None]


class Cluster:
    """A running Slurm, in a `with` statement. `prefix` is its directory; logs go to one that stays.

    `settings` are more lines for slurm.conf. With `accounted`, it has an `accounting.Accounting`.
    It ends with the process that made it, however that ends: a guard of its own waits for that.
    """

    def __init__(self, logs, settings="", accounted=False):
        self.logs = Path(logs).resolve()  # slurmctld changes directory
        self._settings, self._accounted = settings, accounted

    def __enter__(self):
        # Not below `logs`: Slurm puts sockets there, and the path of a socket has at most 107 characters.
        self.prefix = Path(tempfile.mkdtemp(prefix="slurm-")).resolve()
        self.bin = self.prefix / "bin"
        for name in ("bin", "run", "state", "spool"):
            (self.prefix / name).mkdir()
        accounting = self._write_files()
        command = [sys.executable, "-m", "tests.slurm.guard", str(self.prefix)]
        self._guard = subprocess.Popen(command, cwd=HOME, stdin=subprocess.PIPE, start_new_session=True)
        try:
            if accounting:
                accounting.start()
            self._start("slurmctld", "-i")
            for node in NODES:
                self.start_node(node)
            self.wait_for_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._guard.stdin.close()
        self._guard.wait()

    @property
    def _submissions(self):
        return self.logs / "sbatch"

    @property
    def environment(self):
        """Return the environment of a user of this cluster: only its commands are on PATH."""
        other = ("SLURM_", "SBATCH_", "SRUN_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(other)}
        return kept | {"PATH": f"{self.bin}:/usr/local/bin:/usr/bin:/bin", MARK: str(self.prefix)}

    def run(self, *command):
        """Run a Slurm command; returns its stdout. Raises RuntimeError with its output if it fails."""
        path = [self.bin / command[0], *command[1:]]
        done = subprocess.run(path, env=self.environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise RuntimeError(f"{shlex.join(command)} failed: {done.stderr.strip()}")
        return done.stdout

    def queue(self):
        """Return {job id: state} of the pending and running jobs."""
        return dict(line.split() for line in self.run("squeue", "-h", "-o", "%i %T").splitlines())

    def state_of(self, job):
        """Return the state of a job, also of an ended one: COMPLETED, CANCELLED, ..."""
        return self.run("squeue", "-h", "-t", "all", "-j", job, "-o", "%T").strip()

    def nodes_of(self, job):
        """Return the nodes of a job; the first runs its script."""
        names = self.run("squeue", "-h", "-j", job, "-o", "%N").strip()
        return self.run("scontrol", "show", "hostnames", names).split()

    def cancel_all(self):
        """Cancel all jobs and wait until they are gone."""
        if jobs := self.queue():
            self.run("scancel", *jobs)
        self.wait_until_empty()

    def ranks_of(self, job):
        """Return the process ids of the ranks of a job."""
        own = processes.with_one_of(f"SLURM_JOB_ID={job}") & running(self.prefix)
        return {process for process in own if "\nRANK=" in "\n".join(processes.environment_of(process))}

    def wait_until_empty(self):
        """Wait until no job is pending, running or completing. Raises TimeoutError after 20 s."""
        processes.wait_until(lambda: not self.queue(), 20, "the queue was empty")

    def submissions(self):
        """Return the arguments of each call of sbatch so far, in order."""
        calls = self._submissions.read_text(encoding="utf-8").split("\1")[:-1] if self._submissions.exists() else []
        return [call.split("\0")[:-1] for call in calls]

    def nodes(self):
        """Return {name: state} of the nodes."""
        return dict(line.split() for line in self.run("sinfo", "-h", "-N", "-o", "%N %T").splitlines())

    def wait_for_nodes(self):
        """Wait until all nodes are idle. Raises TimeoutError with the end of the controller's log."""
        wanted = dict.fromkeys(NODES, "idle")
        try:
            processes.wait_until(lambda: self._says(self.nodes) == wanted, 20, "all nodes were idle")
        except TimeoutError as error:
            said = (self.logs / "slurmctld.log").read_text(errors="replace")[-3000:]
            raise TimeoutError(f"{error}: {self._says(self.nodes)}\n{said}") from None

    def start_node(self, node):
        """Start a node's slurmd."""
        (self.prefix / "spool" / node).mkdir(exist_ok=True)
        self._start("slurmd", "-N", node)

    def kill_node(self, node):
        """SIGKILL all processes of a node, as if it were lost. Without slurmd alone its jobs would keep running."""
        processes.kill({self._slurmd_of(node)})
        halted = set()  # a machine stops at once: no process of it reports the death of another
        while running_on := self._on_node(node) - halted:
            processes.kill(running_on, signal.SIGSTOP)
            halted |= running_on
        while alive := self._on_node(node):
            processes.kill(alive)

    def _slurmd_of(self, node):
        (process,) = {int((self.prefix / f"run/{node}.pid").read_text())} & running(self.prefix)
        return process

    def _on_node(self, node):
        """Return the slurmstepds of a node and their descendants; a step's processes name their node."""
        above = processes.parents()
        on_node = processes.with_one_of(f"SLURMD_NODENAME={node}") & running(self.prefix)
        steps = {above[process] for process in on_node if process in above and _is_stepd(above[process])}
        return processes.with_descendants(steps | on_node)

    def _start(self, daemon, *options):
        environment = self.environment | {"SLURM_CONF": str(self.prefix / "slurm.conf")}
        command = [which(daemon), *options, "-f", str(self.prefix / "slurm.conf")]
        with open(self.logs / "daemons", "ab") as log:
            subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=True)

    def _says(self, question):
        try:
            return question()
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            return str(error)

    def _write_files(self):
        """Write the configuration and the commands. Returns the accounting, None for none."""
        address = socket.gethostbyname(socket.gethostname())  # NoInAddrAny has daemons listen there alone
        port, *ports = free_ports(3 + len(NODES), address)
        nodes = [
            f"NodeName={node} NodeHostname=localhost NodeAddr={address} Port={own}"
            for node, own in zip(NODES, ports[2:], strict=True)
        ]
        user = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
        accounting = Accounting(self, user, ports[:2]) if self._accounted else None
        conf = SLURM_CONF.format(
            **{"address": address, "port": port, "user": user, "prefix": self.prefix, "logs": self.logs},
            **{"gpus": GPUS_PER_NODE, "nodes": "\n".join(nodes), "first_job": 1 + port % 9000},
            settings=self._settings + (accounting.settings if accounting else ""),
        )
        texts = {"slurm.conf": conf, "gres.conf": GRES_CONF, "cgroup.conf": CGROUP_CONF}
        for name, text in texts.items():
            (self.prefix / name).write_text(text, encoding="utf-8")
        for name in filter(which, CLIENTS):
            (self.bin / name).write_text(self._shim(name), encoding="utf-8")
            (self.bin / name).chmod(0o755)
        return accounting

    def _shim(self, name):
        """Return a wrapper of a command, first on PATH: Snakemake's plugin removes SLURM_CONF from jobs."""
        conf, log = shlex.quote(str(self.prefix / "slurm.conf")), shlex.quote(str(self._submissions))
        # locked: Snakemake calls sbatch from several threads, and the arguments of two calls must not mix
        note = f"(flock 9; printf '%s\\0' \"$@\"; printf '\\1') 9>>{log} >&9\n" if name == "sbatch" else ""
        return f'#!/bin/sh\n{note}export SLURM_CONF={conf}\nexec {which(name)} "$@"\n'


def stop(prefix):
    """Kill all processes of the cluster below `prefix`. Its files are deleted, so no process needs a clean end."""
    while left := running(prefix) - {os.getpid()}:
        processes.kill(left)


def running(prefix):
    """Return the processes of the cluster below `prefix`: its daemons, their helpers, jobs, and drivers."""
    return processes.with_one_of(f"{MARK}={prefix}", f"SLURM_CONF={prefix}/slurm.conf")


def _is_stepd(process):
    return processes.name_of(process) == "slurmstepd"


def main():
    """Start a cluster, print how to use it, and stop it at the end of stdin."""
    with tempfile.TemporaryDirectory() as logs, Cluster(logs) as cluster:
        print(f"export PATH={cluster.bin}:$PATH\nThe cluster ends when you press Enter.")
        input()


if __name__ == "__main__":
    main()
