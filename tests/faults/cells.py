# SPDX-License-Identifier: Apache-2.0
"""The cells of the fault matrix: every fault with every operation on every transport, and what is expected of each."""
import os
import re
from dataclasses import dataclass

HERE = os.path.dirname(os.path.abspath(__file__))


def rows(file, macro):
    """The arguments of each MACRO(...) of a .def file, without quotes."""
    with open(os.path.join(HERE, file), encoding="utf-8") as f:
        text = re.sub(r"/\*.*?\*/", "", f.read(), flags=re.S)
    for body in re.findall(r"^" + macro + r"\(((?:[^\"()]|\"[^\"]*\")*)\)", text, flags=re.M):
        yield [a.strip('"') for a in re.findall(r"\"[^\"]*\"|[^,\s\"]+", body)]


@dataclass
class Fault:
    name: str
    kind: str
    outcome: str
    seconds: str
    what: str


@dataclass
class Operation:
    name: str
    repeats: str
    what: str


@dataclass
class Place:
    name: str
    namespaces: str
    what: str
    environment: str


@dataclass
class Cell:
    fault: Fault
    operation: Operation
    place: Place
    outcome: str
    seconds: float
    reason: str = ""  # why it is not applicable, or why it is expected to be unlike its fault's row
    short: bool = False
    rank: int = 1  # that has the fault
    at: int = 0  # of enomem and emfile: the number of the request that is refused; 0: all

    @property
    def name(self):
        return f"{self.fault.name}-{self.operation.name}-{self.place.name}"

    @property
    def applies(self):
        return self.outcome != "none"

    @property
    def victim(self):
        return 0 if self.fault.name == "kill_root" else self.rank


FAULTS = [Fault(*r) for r in rows("faults.def", "FAULT")]
OPERATIONS = [Operation(*r) for r in rows("operations.def", "OPERATION")]
PLACES = [Place(*r) for r in rows("places.def", "PLACE")]


def matches(pattern, fault, operation, place):
    """pattern: three columns, each a name, names with | between them, or *."""
    names = (fault.name, operation.name, place.name)
    return all(p == "*" or n in p.split("|") for p, n in zip(pattern, names))


def all_cells():
    """Every cell; the first row of cells.def that matches has the last word."""
    none, other, short = (list(rows("cells.def", m)) for m in ("NOT_APPLICABLE", "EXPECT", "SHORT"))
    check(none + other + short)
    cells = []
    for place in PLACES:
        for fault in FAULTS:
            for operation in OPERATIONS:
                at = (fault, operation, place)
                cell = Cell(*at, fault.outcome, float(fault.seconds))
                why_not = next((r for r in none if matches(r, *at)), None)
                unlike = next((r for r in other if matches(r, *at)), None)
                if why_not:
                    cell.outcome, cell.reason = "none", why_not[3]
                elif unlike:
                    cell.outcome, cell.seconds, cell.reason = unlike[3], float(unlike[4]), unlike[5]
                cell.short = cell.applies and any(matches(r, *at) for r in short)
                cells.append(cell)
    return cells


def check(patterns):
    """A misspelt name in cells.def would match nothing, in silence."""
    known = [{x.name for x in table} for table in (FAULTS, OPERATIONS, PLACES)]
    for row in patterns:
        for pattern, names in zip(row, known):
            wrong = set(pattern.split("|")) - names - {"*"}
            if wrong:
                raise SystemExit(f"cells.def: {', '.join(row[:3])}: there is no {', '.join(sorted(wrong))}")
