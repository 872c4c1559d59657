# SPDX-License-Identifier: Apache-2.0
"""Holds what the ranks of a cell said against what is expected of it; gives complaints in words."""
import re
import signal

from jobs import RANKS, SLACK

NO_CODE, SUCCESS, ARGUMENT, USAGE, REMOTE = -1, 0, 4, 5, 6
CLOSING_MS = 5000
LEAST_MS = 300  # what a loaded machine needs for anything
KILLED = {-signal.SIGKILL}
CRASHED = {-signal.SIGSEGV, -signal.SIGBUS}

# By outcome: the others' codes (each a possible one; all others have the same, but for {0, 6}), the codes that the victim may
# have (None: any error), the ends that its process may have, and whom texts must blame: "victim" (first of all ranks),
# "both" (the victim among others: it has lost one of two), "named" (the victim is in one of the texts), "id" (who made the
# unique id), or "" (no rank).
RULES = {
    "survive": ({SUCCESS}, {SUCCESS, NO_CODE}, set(), ""),
    "dead": ({REMOTE}, set(), KILLED, "victim"),
    "rootless": ({REMOTE}, set(), KILLED, "id"),
    "parted": ({SUCCESS}, set(), KILLED, ""),
    "cut": ({REMOTE}, {REMOTE}, set(), "victim"),
    "link": ({REMOTE}, {REMOTE}, set(), "both"),
    "local": ({REMOTE}, None, CRASHED, "victim"),
    "gone": ({REMOTE}, {NO_CODE}, set(), "victim"),
    "mismatch": ({USAGE}, {USAGE}, set(), "victim"),
    "arguments": ({ARGUMENT}, {ARGUMENT}, set(), "victim"),
    "unlike": ({ARGUMENT}, {ARGUMENT}, set(), "both"),
    "strangers": ({REMOTE}, {USAGE}, set(), "victim"),
    "watch": ({REMOTE}, {NO_CODE, REMOTE}, set(), "victim"),
    "pair": ({USAGE, REMOTE}, {USAGE, REMOTE, SUCCESS}, set(), "named"),
    "left": ({SUCCESS, REMOTE}, {SUCCESS, REMOTE, NO_CODE}, set(), ""),
    "refused": ({SUCCESS}, None, set(), ""),
}


# Outcomes in which a process may end, and what a text says of one that has.
DEADLY = ("dead", "rootless", "parted", "local", "cut")
PERHAPS = r"process has ended, or its communicator|process ended or its host cannot be reached|(crashed|ended) or was killed, or something between"
DEATH = r"\b(was killed|died|dead|crashed|process (has )?ended)\b"


def accused(text, rank):
    """The rank that a text blames: the first that it names, but for the reader itself."""
    text = re.sub(rf"^rank {rank} of \d+, in [^:]*: ", "", text)
    text = re.sub(r"^rank \d+ of \d+ failed: (?=cannot reach rank)", "", text)
    waited = re.search(r"has waited .*? for ranks? (\d+)", text)
    if waited:
        return int(waited.group(1))
    lost = re.search(r"^rank \d+ lost the connection to rank (\d+)", text)
    if lost:
        return int(lost.group(1))
    other = re.search(r"^rank \d+ is in .*?, but rank (\d+) called something else", text)
    if other:
        return int(other.group(1))
    named = [int(n) for n in re.findall(r"\branks? (\d+)", text)]
    return next((n for n in named if n != rank), None)


def leaks(facts):
    before, now = facts["before"], facts["now"]
    # glibc keeps the stacks and arenas of threads that have ended, four mappings each: how many depends on the load.
    allowed = {"fds": 0, "sockets": 0, "threads": 0, "shared": 0, "maps": 20, "kb": 16384}
    for what, more in allowed.items():
        if now[what] > before[what] + more:
            yield f"{what} {before[what]} before, {now[what]} afterwards"


def judge_end(cell, rank, job):
    """A process that has given no facts."""
    ends = RULES[cell.outcome][2]
    if job.hung[rank]:
        return f"rank {rank} hangs"
    if rank == cell.victim and job.codes[rank] in ends:
        return None
    code = job.codes[rank]
    how = f"ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} {how}"


def judge_code(cell, rank, facts):
    others, victims, _, blamed = RULES[cell.outcome]
    code, text = facts["code"], facts["text"]
    if rank == cell.victim:
        if code <= SUCCESS if victims is None else code not in victims:
            yield f"rank {rank}, the victim, gets {code}: {text}"
    elif bystander(cell, rank):
        pass
    elif code not in others:
        yield f"rank {rank} gets {code}, not {' or '.join(map(str, sorted(others)))}: {text}"
    elif cell.fault.name == "duplicate" and "rank 0 of 4 has joined twice" not in text:  # neither of the two is the wrong one
        yield f"rank {rank} does not say that rank 0 came twice: {text}"
    elif cell.victim == 0 and "the process of the root" in text:  # it may be no rank
        pass
    elif blamed == "victim" and cell.fault.name != "duplicate" and accused(text, rank) != cell.victim:
        yield f"rank {rank} does not blame rank {cell.victim}: {text}"
    elif blamed == "both" and not re.search(rf"\branks? {cell.victim}\b|\band (rank )?{cell.victim}\b", text):
        yield f"rank {rank} does not name rank {cell.victim}: {text}"
    elif blamed == "id" and "rank 0" not in text and "ncclGetUniqueId" not in text:
        yield f"rank {rank} does not say that the maker of the unique id is gone: {text}"


def bystander(cell, rank):
    """The rank that is left out of a shrink makes no call."""
    return cell.operation.name == "shrink" and rank == RANKS - 1


def judge_rank(cell, rank, facts):
    code, text = facts["code"], facts["text"]
    yield from judge_code(cell, rank, facts)
    if cell.outcome not in DEADLY and re.search(DEATH, re.sub(PERHAPS, "", text)):
        yield f"rank {rank} speaks of a death, but all live: {text}"
    if code > SUCCESS and not text:
        yield f"rank {rank} gets {code} without a text"
    if code != NO_CODE and not bystander(cell, rank) and facts["ms"] > max(cell.seconds * 1000, LEAST_MS) * SLACK:
        yield f"rank {rank} has its result after {facts['ms']} ms"
    deceived = rank == cell.victim and cell.fault.name == "root" and code != SUCCESS  # a root learns of it in its next call
    if facts["wrong"] and not deceived:
        yield f"rank {rank} has {facts['wrong']} wrong elements with success"
    if facts["closing"] > CLOSING_MS * SLACK:
        yield f"rank {rank} needs {facts['closing']} ms to end its communicator"
    if facts["closed"]:
        yield f"rank {rank} gets {facts['closed']} from ending its communicator"
    if facts["after"] or facts["wrong_after"]:
        yield f"rank {rank} cannot use a new communicator afterwards ({facts['after']}, {facts['wrong_after']} wrong)"
    for leak in leaks(facts):
        yield f"rank {rank} leaks: {leak}"


def judge_all(cell, facts):
    """What is asked of the ranks together."""
    others = [f for r, f in enumerate(facts) if f and r != cell.victim and not bystander(cell, r)]
    codes = sorted({f["code"] for f in others})
    if len(codes) > 1 and cell.outcome != "left":
        yield f"the others have different codes: {codes}"
    if cell.fault.name == "control" and REMOTE in codes:
        lost = {m for f in others for m in re.findall(r"control connection between rank \d+ and rank \d+", f["text"])}
        if len(lost) != 1:
            yield f"the others do not name one control connection: {sorted(lost)}"
    if RULES[cell.outcome][3] == "named" and not any(f"rank {cell.victim}" in f["text"] for f in others):
        yield f"no text names rank {cell.victim}"


def judge(cell, job, facts, output):
    complaints = []
    for rank in range(RANKS):
        if facts[rank]:
            complaints += judge_rank(cell, rank, facts[rank])
        else:
            end = judge_end(cell, rank, job)
            complaints += [end] if end else []
    if cell.fault.name in ("flap", "cut", "reset", "control", "enomem", "emfile"):
        victim = facts[cell.victim]
        if victim and not victim["hits"] and cell.outcome != "survive":
            complaints.append("the fault did not happen: there was nothing to break")
    complaints += judge_all(cell, facts)
    if not complaints and "ASSERT" in output:
        complaints.append("an assertion in the output")
    return complaints


def result_ms(cell, facts):
    """How long it took until the last rank had its result."""
    times = [f["ms"] for r, f in enumerate(facts) if f and f["code"] != NO_CODE]
    return max(times + [0])
