"""The accounting of a private cluster: slurmdbd and its own MariaDB, both below the cluster's directory."""

import os
import shutil
import subprocess

from tests.helpers import processes

NEEDED = ("slurmdbd", "mariadbd", "mariadb", "mariadb-install-db", "sacct", "sacctmgr")
ACCOUNT = "lab"
"""The account that jobs of the tests use."""

# Jobs of an account that does not exist are refused only if associations are enforced.
SLURM_CONF = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=localhost
AccountingStoragePort={port}
AccountingStorageEnforce=associations
"""
SLURMDBD_CONF = """
AuthType=auth/none
DbdHost=localhost
DbdPort={port}
SlurmUser={user}
PidFile={prefix}/run/slurmdbd.pid
LogFile={logs}/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={storage}
StorageUser=slurm
StoragePass=x
StorageLoc=slurm_acct
"""
# Small buffers, and no fsync: the database is deleted at the end.
MARIADB = ["--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--innodb-flush-log-at-trx-commit=0"]
DATABASE = """
CREATE DATABASE slurm_acct; CREATE USER slurm@'%' IDENTIFIED BY 'x'; GRANT ALL ON slurm_acct.* TO slurm@'%';
"""


def which(name):
    """Return the path of a command, also below sbin; None if it is not installed."""
    return shutil.which(name, path=f"{os.environ['PATH']}:/usr/local/sbin:/usr/sbin:/sbin")


class Accounting:
    """MariaDB and slurmdbd of a `cluster.Cluster`, on two ports of this machine. Both end with the cluster."""

    def __init__(self, cluster, user, ports):
        self.cluster, self.user = cluster, user
        self.port, self.storage = ports

    @property
    def settings(self):
        """Return the lines of slurm.conf for it."""
        return SLURM_CONF.format(port=self.port)

    def start(self):
        """Start both, and register the cluster, an account and its user."""
        text = SLURMDBD_CONF.format(
            **{"port": self.port, "storage": self.storage, "user": self.user},
            **{"prefix": self.cluster.prefix, "logs": self.cluster.logs},
        )
        conf = self.cluster.prefix / "slurmdbd.conf"
        conf.write_text(text, encoding="utf-8")
        conf.chmod(0o600)  # slurmdbd refuses other modes
        self._start_database()
        self._run("slurmdbd")
        processes.wait_until(self._answers, 60, "slurmdbd answered")
        for each in ("cluster caravan", f"account {ACCOUNT}", f"user {self.user} account={ACCOUNT}"):
            self.cluster.run("sacctmgr", "-i", "add", *each.split())

    def _start_database(self):
        data, socket = f"--datadir={self.cluster.prefix}/db", f"--socket={self.cluster.prefix}/run/mysql.sock"
        user = f"--user={self.user}"
        self._run(
            *("mariadb-install-db", "--no-defaults", data, user),
            *("--auth-root-authentication-method=normal", "--skip-test-db"),
        )
        with open(self.cluster.logs / "mariadbd.log", "ab") as log:
            subprocess.Popen(
                [which("mariadbd"), "--no-defaults", data, user, socket, "--bind-address=127.0.0.1"]
                + [f"--port={self.storage}", f"--pid-file={self.cluster.prefix}/run/mariadbd.pid", *MARIADB],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        client = ("mariadb", "--no-defaults", socket, "--user=root")
        processes.wait_until(lambda: self._run(*client, "--execute=SELECT 1", check=False), 60, "MariaDB answered")
        self._run(*client, f"--execute={DATABASE}")

    @property
    def _environment(self):
        return self.cluster.environment | {"SLURM_CONF": str(self.cluster.prefix / "slurm.conf")}

    def _run(self, command, *options, check=True):
        """Run a command; returns whether it succeeded."""
        with open(self.cluster.logs / "accounting", "ab") as log:
            done = subprocess.run(
                [which(command), *options],
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                check=check,
                timeout=120,
            )
        return done.returncode == 0

    def _answers(self):
        try:
            return self.cluster.run("sacctmgr", "-n", "list", "qos")
        except (RuntimeError, subprocess.TimeoutExpired):
            return False
