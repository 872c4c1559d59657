# SPDX-License-Identifier: Apache-2.0
"""Writes the tables of a run of the whole matrix into docs/faults.md, between two markers.  The layout depends on the tables
alone, and times are rounded up to a few steps, so that two runs differ in little."""
from cells import FAULTS, OPERATIONS, PLACES

BEGIN, END = "<!-- made by make check-faults: begin -->", "<!-- made by make check-faults: end -->"
STEPS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50)
CODES = {
    "survive": "ok", "parted": "ok", "left": "ok", "refused": "ok", "dead": "6", "cut": "6", "link": "6", "local": "6",
    "gone": "6", "watch": "6", "rootless": "6", "mismatch": "5", "arguments": "4", "unlike": "4",
}


def letter(n):
    return letter(n // 26 - 1) + chr(ord("a") + n % 26) if n >= 26 else chr(ord("a") + n)


class Notes:
    """Reasons, each with a letter, in the order in which the tables need them."""

    def __init__(self):
        self.reasons = []

    def of(self, reason):
        if reason not in self.reasons:
            self.reasons.append(reason)
        return letter(self.reasons.index(reason))


def step(ms):
    return next((s for s in STEPS if ms <= s * 1000), STEPS[-1])


def cell_text(cell, result, notes):
    if not cell.applies:
        return notes.of(cell.reason)
    if result is None:
        return "not run"
    if not result["ok"]:
        return "**FAILS**"
    note = f" ({notes.of(cell.reason)})" if cell.reason else ""
    code = CODES.get(cell.outcome) or next(str(c) for r, c in enumerate(result["codes"]) if c and r != cell.victim)
    return f"{code}, {step(result['ms']):g}{note}"


def table(place, cells, results, notes):
    by_place = {(c.fault.name, c.operation.name): c for c in cells if c.place is place}
    yield f"### {place.what[0].upper()}{place.what[1:]}"
    yield ""
    yield "| fault | " + " | ".join(o.name for o in OPERATIONS) + " |"
    yield "|---" * (len(OPERATIONS) + 1) + "|"
    for fault in FAULTS:
        row = [by_place[fault.name, o.name] for o in OPERATIONS]
        yield f"| {fault.name} | " + " | ".join(cell_text(c, results.get(c.name), notes) for c in row) + " |"
    yield ""


def page_part(cells, results, slack):
    run = [c for c in cells if c.name in results]
    bad = [c for c in run if not results[c.name]["ok"]]
    yield f"{len(run)} cells were run, {len(run) - len(bad)} hold, {len(bad)} do not; " \
          f"{sum(not c.applies for c in cells)} are not applicable."
    if slack != 1:
        yield f"The machine was busy: bounds of time were {slack:g} times those of the tables."
    yield ""
    notes = Notes()
    for place in PLACES:
        yield from table(place, cells, results, notes)
    yield "### Notes"
    yield ""
    for n, reason in enumerate(notes.reasons):
        yield f"- {letter(n)}: {reason}"
    yield ""
    yield "### Faults"
    yield ""
    yield "| fault | what happens | bound |"
    yield "|---|---|---|"
    for f in FAULTS:
        yield f"| {f.name} | {f.what} | {f.seconds} s |"
    yield ""
    yield "### Operations"
    yield ""
    yield "| operation | what the ranks do |"
    yield "|---|---|"
    for o in OPERATIONS:
        yield f"| {o.name} | {o.what} |"


def write(page, cells, results, slack):
    with open(page, encoding="utf-8") as f:
        text = f.read()
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    with open(page, "w", encoding="utf-8") as f:
        f.write(before + BEGIN + "\n" + "\n".join(page_part(cells, results, slack)) + "\n" + END + after)
