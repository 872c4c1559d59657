# SPDX-License-Identifier: Apache-2.0
"""torchft's Manager and lighthouse over groups of hocket.torch.create_group(): a rank is killed, and the others train
on. Each replica is a process of one rank.
"""
import datetime
import logging
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
from torchft import Manager
from torchft.coordination import LighthouseServer
from torchft.process_group import ProcessGroupWrapper

import hocket.torch

REPLICAS, DIES, STEPS, LIMIT = 3, 10, 40, 0.03
SECONDS = datetime.timedelta(seconds=20)


class Group(ProcessGroupWrapper):
    def __init__(self):
        super().__init__(timeout=SECONDS)
        self.took = []

    def _create_pg(self, store, rank, world_size):
        return hocket.torch.create_group(store, rank, world_size, self._timeout)

    def getBackendName(self):  # noqa: N802
        return "torchft-hocket"

    def configure(self, *arguments, **named):
        begin = time.perf_counter()
        super().configure(*arguments, **named)
        self.took.append(time.perf_counter() - begin)


def replica(number, lighthouse, meeting):
    logging.disable(logging.INFO)
    os.environ["NCCL_DEBUG"] = "NONE"  # it is to say nothing of the rank that dies
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    weights, group = torch.zeros(1000), Group()
    manager = Manager(pg=group, min_replica_size=2, load_state_dict=lambda s: weights.copy_(s["w"]),
                      state_dict=lambda: {"w": weights}, lighthouse_addr=lighthouse, replica_id=f"r{number}", rank=0,
                      world_size=1, store_addr="localhost", store_port=store.port, timeout=SECONDS,
                      use_async_quorum=False, hostname="localhost")
    together = dist.TCPStore("localhost", meeting)
    together.set(f"here {number}", b"")
    together.wait([f"here {n}" for n in range(REPLICAS)])
    sizes = []
    while manager.current_step() < STEPS:
        manager.start_quorum()
        gradient = torch.ones(1000) * manager.current_step()
        manager.allreduce(gradient).wait()
        if manager.should_commit():
            weights += gradient
            sizes.append(manager.num_participants())
        if number == REPLICAS - 1 and manager.current_step() == DIES:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.02)
    print(number, weights[0].item(), weights.unique().numel(), sizes[0], min(sizes), sizes[-1],
          *(f"{1000 * t:.1f}" for t in group.took), flush=True)
    manager.shutdown(wait=False)
    os._exit(0)  # torchft's servers have threads that do not end


def main():
    lighthouse = LighthouseServer(bind="[::]:0", min_replicas=2, join_timeout_ms=2000, heartbeat_timeout_ms=1000)
    meeting = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)

    def start(number):
        return subprocess.Popen([sys.executable, __file__, str(number), lighthouse.address(), str(meeting.port)],
                                stdout=subprocess.PIPE, text=True)

    replicas = [start(n) for n in range(REPLICAS)]
    assert replicas[-1].wait(100) == -signal.SIGKILL
    outs = [each.communicate(timeout=100)[0].splitlines()[-1].split() for each in replicas[:-1]]
    assert all(each.returncode == 0 for each in replicas[:-1]), [each.returncode for each in replicas]
    # Each step's mean is the step, whatever the number of replicas.
    assert all(float(out[1]) == sum(range(STEPS)) and out[2] == "1" for out in outs), outs
    assert all(out[3:5] == ["3", "2"] for out in outs), f"nobody trained on with two: {outs}"
    later = [float(ms) for out in outs for ms in out[7:]]
    assert later and min(later) < 1000 * LIMIT, later
    print(f"{REPLICAS} replicas, one is killed at step {DIES}, {REPLICAS - 1} train to {STEPS}; configure() after the "
          f"first takes {min(later):.1f} to {max(later):.1f} ms")
    lighthouse.shutdown()
    sys.stdout.flush()
    os._exit(0)


if len(sys.argv) > 1:
    replica(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
else:
    main()
