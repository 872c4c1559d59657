# SPDX-License-Identifier: Apache-2.0
"""How processes end: with 0, without a word and in time, whatever they leave behind.

Each case is two processes, forked from this one, which has PyTorch loaded. All cases run at a time, so that there are
many more processes than cores. A process that does not end in time prints the stacks of its threads.
usage: torch_exit.py [CASE...]
"""
import faulthandler
import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed as dist

import hocket.torch
import hocket.torch._group  # loads the library

hocket.torch.register()
LIMIT, GRACE = 120, 10  # seconds


def works(n):
    return [dist.all_reduce(torch.ones(1_000_000), async_op=True) for _ in range(n)]


def with_callbacks():
    """The first callback waits for the last operation; the others compute."""
    made = [work.get_future() for work in works(10)]
    return [made[0].then(lambda _: made[9].wait()), *(f.then(lambda f: f.value()[0].sum()) for f in made[1:])]


def crossed():
    """Messages both ways; nobody waits for them."""
    other = 1 - dist.get_rank()
    return [dist.isend(torch.ones(100_000), other, tag=t) for t in range(3)], \
        [dist.irecv(torch.ones(100_000), other, tag=t) for t in range(3)]


def trained():
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 100))
    model(torch.ones(5, 100)).sum().backward()
    return model


CASES = {
    "nothing": lambda: None,
    "work": lambda: works(1)[0],
    "many works": lambda: works(30),
    "dropped works": lambda: (works(3), None)[1],
    "futures": lambda: [work.get_future() for work in works(10)],
    "callbacks": with_callbacks,
    "messages": crossed,
    "messages nobody receives": lambda: [dist.isend(torch.ones(1), 1, tag=t) for t in range(20)
                                         if dist.get_rank() == 0],
    "a receive from any rank": lambda: dist.group.WORLD.recv_anysource([torch.ones(1)], 3).get_future(),
    "a receive from itself": lambda: dist.irecv(torch.ones(1), dist.get_rank()).get_future(),
    "DDP": trained,
}


def rank_of(case, destroys, rank, folder):
    """In a process of its own. It ends as any script does."""
    out = os.open(f"{folder}/out", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    faulthandler.dump_traceback_later(LIMIT, exit=True)
    dist.init_process_group("hocket", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    dist.barrier()
    globals()["left"] = CASES[case]()
    if destroys:
        dist.destroy_process_group()
    sys.exit()


def ended(pids):
    """The exit codes; a process that does not end is killed, and has none."""
    codes, until = dict.fromkeys(pids), time.monotonic() + LIMIT + GRACE
    while None in codes.values() and time.monotonic() < until:
        for pid in [pid for pid in pids if codes[pid] is None]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    for pid in [pid for pid in pids if codes[pid] is None]:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    return codes


def main():
    home, cases, bad, begin = tempfile.mkdtemp(), sys.argv[1:] or list(CASES), 0, time.monotonic()
    for destroys in (False, True):
        pids = {}
        for n, case in enumerate(cases):
            os.mkdir(f"{home}/{destroys}{n}")
            for rank in range(2):
                pids[n, rank] = os.fork()
                if pids[n, rank] == 0:
                    return rank_of(case, destroys, rank, f"{home}/{destroys}{n}")
        codes = ended(list(pids.values()))
        for n, case in enumerate(cases):
            with open(f"{home}/{destroys}{n}/out", errors="replace") as file:
                said = file.read()
            both = [codes[pids[n, rank]] for rank in range(2)]
            if both != [0, 0] or said:
                bad += 1
                print(f"{case}, {'destroyed' if destroys else 'not destroyed'}: codes {both}\n{said[:2000]}")
    shutil.rmtree(home)
    print(f"{len(cases)} ways to end, with destroy_process_group() and without, {2 * len(cases)} processes at a time: "
          f"{bad} bad, {time.monotonic() - begin:.0f} s")
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
