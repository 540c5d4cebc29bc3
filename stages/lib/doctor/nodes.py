"""Whether all ranks are there, and have a core for each of their threads."""

import os

from stages.lib.doctor.findings import OK, WARNING, Finding, listed

NAME, SECONDS = "nodes", 20.0


def look(meeting, _):
    """The cores that this process may use, its threads, and how many ranks there should be."""
    cores = sorted(os.sched_getaffinity(0))
    return {"cores": cores, "threads": _threads(len(cores)), "world_size": meeting.world_size}


def _threads(cores):
    """Threads of a process that calculates; torch takes all cores where nobody says."""
    said = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return int(said) if said.isdecimal() and int(said) else cores


def judge(facts, _):
    """Finding on ranks and hosts, and one on cores and threads."""
    by_host = {}
    for found in facts.values():
        by_host.setdefault(found["host"], []).append(found)
    return [_on_ranks(by_host, facts), _on_cores(by_host)]


def _on_ranks(by_host, facts):
    counts = {host: len(ranks) for host, ranks in by_host.items()}
    text = f"{_count(len(facts), 'rank')} on {_count(len(counts), 'host')}: {listed(counts)}"
    if len(set(counts.values())) == 1:
        return Finding(OK, NAME, text)
    uneven = listed(f"{count} on {host}" for host, count in counts.items())
    return Finding(WARNING, NAME, f"{text}; hosts have different numbers of ranks ({uneven}): start as many on each")


def _on_cores(by_host):
    short, texts = [], []
    for host, ranks in by_host.items():
        cores = len({core for found in ranks for core in found["cores"]})
        threads = ranks[0]["threads"]
        texts.append(f"{len(ranks)} x {_count(threads, 'thread')} on {_count(cores, 'core')}")
        if sum(found["threads"] for found in ranks) > cores:
            short.append(f"{texts[-1]} of {host}")
    if short:
        remedy = "fewer `omp_threads`, or more `threads` of the job, in the profile"
        return Finding(WARNING, "cores", f"ranks get in each other's way, {listed(short)}: {remedy}")
    return Finding(OK, "cores", f"ranks x threads a host: {listed(texts)}")


def _count(number, name):
    return f"{number} {name}{'' if number == 1 else 's'}"
