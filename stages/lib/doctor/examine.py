"""One check on all ranks: each looks, the first gathers what they saw and judges it. Whatever breaks is a finding."""

import time

from stages.lib.doctor.findings import FAIL, Finding, listed
from stages.lib.doctor.limit import Limit, limited
from stages.lib.doctor.meeting import Absent
from stages.lib.errors import RankLocalError, UserError

FIRST = "nodes"  # the check that says who did not come at all
PATIENCE = 10.0  # seconds for the answer of a rank that is done in time


class Examination:
    """The checks of one call, in their order.

    A check is a module with NAME, SECONDS, `look(meeting, arguments)` and `judge(facts, arguments)`. `look` runs on all
    ranks at once and returns data for JSON, or None. `judge` runs on the first rank alone: {rank: data} -> [Finding].
    """

    def __init__(self, meeting, arguments):
        self.meeting, self.arguments = meeting, arguments
        self.findings = []
        self._hosts = {}
        self.absent = {}
        """{rank: name of the check} of the ranks that gave no answer; only the first rank knows."""

    def gather_hosts(self, seconds):
        """Learn who is there, at the first meeting. Ranks that do not come within `seconds` are absent from then on."""
        mine = {"host": self.meeting.host, "local_rank": self.meeting.local_rank}
        begun = time.monotonic()
        found = self._exchange("hosts", mine, begun + seconds)
        self._hosts = {rank: facts["host"] for rank, facts in found.items()}
        self.absent = dict.fromkeys(self.absent, FIRST)
        leaders = [(rank, facts["host"]) for rank, facts in found.items() if facts["local_rank"] == 0]
        told = self._agree("leaders", [leaders, sorted(self.absent)], begun + 2 * seconds + PATIENCE)
        self.meeting.leaders, self.meeting.missing = dict(map(tuple, told[0])), told[1]

    def examine(self, check):
        """Do one check; returns its findings on the first rank, and nothing on the others."""
        self.meeting.doing = ""
        # all ranks begin together, and none works longer than the check's limit
        until = time.monotonic() + check.SECONDS + PATIENCE
        try:
            seen = {"seen": limited(lambda: check.look(self.meeting, self.arguments), check.SECONDS)}
        except Limit:
            seen = {
                "trouble": f"no end within {check.SECONDS:.0f} s{self.meeting.doing and f' of {self.meeting.doing}'}"
            }
        except Exception as error:
            seen = {"trouble": _sentence(error)}
        found = self._exchange(check.NAME, seen, until)
        made = self._judge(check, found) if self.meeting.rank == 0 else []
        self.meeting.leave_out(self._agree(f"{check.NAME} done", sorted(self.absent), until + PATIENCE))
        self.findings += made
        return made

    def _judge(self, check, found):
        gone = [rank for rank, name in self.absent.items() if name == check.NAME]
        if gone:
            return [Finding(FAIL, check.NAME, f"no answer from {self.named(gone)}: look at these hosts")]
        if troubles := {rank: facts["trouble"] for rank, facts in found.items() if "trouble" in facts}:
            by_reason = {}
            for rank, reason in troubles.items():
                by_reason.setdefault(reason, []).append(rank)
            text = "; ".join(f"{reason} ({self.named(ranks)})" for reason, ranks in by_reason.items())
            return [Finding(FAIL, check.NAME, text)]
        facts = {rank: {**(said["seen"] or {}), "host": self._hosts[rank]} for rank, said in found.items()}
        try:
            return check.judge(facts, self.arguments)
        except Exception as error:
            return [Finding(FAIL, check.NAME, f"the check broke: {_sentence(error)}")]

    def named(self, ranks):
        """'rank 3 on node2': ranks with their hosts, as far as they are known."""
        return listed(f"rank {rank}" + (f" on {self._hosts[rank]}" if rank in self._hosts else "") for rank in ranks)

    def _exchange(self, key, value, until):
        """{rank: what it said until then} on the first rank; {} on the others."""
        meeting, found = self.meeting, {}
        meeting.say(f"{key}/{meeting.rank}", value)
        if meeting.rank:
            return found
        for rank in range(meeting.world_size):
            if rank not in self.absent:
                try:
                    found[rank] = meeting.hear(f"{key}/{rank}", until - time.monotonic())
                except Absent:
                    self.absent[rank] = key
        return found

    def _agree(self, key, value, until):
        """What the first rank says, on all ranks. Raises RankLocalError where it is silent until then."""
        if self.meeting.rank == 0:
            self.meeting.say(key, value)
            return value
        try:
            return self.meeting.hear(key, until - time.monotonic())
        except Absent:
            raise RankLocalError(
                f"the first rank gave no answer to rank {self.meeting.rank} on {self.meeting.host}"
            ) from None


def _sentence(error):
    text = str(error).strip().partition("\n")[0]
    if isinstance(error, (UserError, Absent)):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
