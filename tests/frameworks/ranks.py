# SPDX-License-Identifier: Apache-2.0
"""Ranks as processes: the first that fails ends the rest."""
from multiprocessing import Process, connection


def run(body, arguments, begun=lambda: None, seconds=120):
    """Runs body(*arguments[r]) as rank r, calls begun() when all have begun, and checks that all ranks end well."""
    ranks = [Process(target=body, args=a) for a in arguments]
    for r in ranks:
        r.start()
    begun()
    waiting = {r.sentinel: r for r in ranks}
    while waiting:
        for ended in connection.wait(list(waiting), seconds) or list(waiting):
            r = waiting.pop(ended)
            r.join(1)
            if r.exitcode != 0:
                waiting = {}
                break
    codes = [r.exitcode for r in ranks]
    for r in ranks:
        r.kill()
    assert codes == [0] * len(ranks), codes
