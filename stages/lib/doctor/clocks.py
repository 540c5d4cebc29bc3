"""Whether the hosts' clocks agree: leases, deadlines and the order of events rest on them."""

import time

from stages.lib.doctor.findings import FAIL, OK, WARNING, Finding

NAME, SECONDS = "clocks", 20.0
ROUNDS = 5
WORTH_A_WARNING, TOO_MUCH = 1.0, 60.0  # seconds


def look(meeting, _):
    """{"offsets": {host: (seconds ahead of the first rank's clock, seconds of doubt)}} on the first rank.

    The first rank asks each host in turn, and believes the fastest of its answers.
    """
    if meeting.rank == 0:
        return {"offsets": {host: _ask(meeting, rank) for rank, host in meeting.leaders.items() if rank}}
    if meeting.leads:
        for turn in range(ROUNDS):
            meeting.hear(f"clock asks {meeting.rank} {turn}", SECONDS)
            meeting.say(f"clock says {meeting.rank} {turn}", now())
    return None


def now():
    """This host's clock, in seconds since 1970."""
    return time.time()


def _ask(meeting, rank):
    answers = []
    for turn in range(ROUNDS):
        begun = now()
        meeting.say(f"clock asks {rank} {turn}", True)
        there = meeting.hear(f"clock says {rank} {turn}", SECONDS)
        ended = now()
        answers.append(((ended - begun) / 2, there - (begun + ended) / 2))
    doubt, offset = min(answers)
    return offset, doubt


def judge(facts, _):
    """The finding: one host's clock is compared with nothing."""
    offsets = facts[0]["offsets"]
    if not offsets:
        return [Finding(OK, NAME, "one host, one clock")]
    host, (offset, doubt) = max(offsets.items(), key=lambda item: abs(item[1][0]))
    level = FAIL if abs(offset) > TOO_MUCH else WARNING if abs(offset) > WORTH_A_WARNING else OK
    if level == OK:
        return [Finding(OK, NAME, f"{len(offsets) + 1} hosts within {abs(offset) + doubt:.3f} s")]
    way = "ahead of" if offset > 0 else "behind"
    text = f"{host} is {abs(offset):.1f} s {way} {facts[0]['host']}: set the clocks (chronyc tracking, timedatectl)"
    return [Finding(level, NAME, text)]
