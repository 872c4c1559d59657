# SPDX-License-Identifier: Apache-2.0
"""SGLang's reader of RAS, as its sources have it, watches a job: no rank is in error or missing while the job runs, a paused rank makes
the counts differ, and a stopped process is missing.  Of SGLang there is only that file.
sglang_hangs.py NCCL_RAS.PY"""
import importlib.util
import os
import signal
import sys
import time
import types

from ras_job import Job

FILE = sys.argv[1]


def main():
    for name in ("sglang", "sglang.srt", "sglang.srt.environ"):
        sys.modules[name] = types.ModuleType(name)
    sys.modules["sglang.srt.environ"].envs = None  # only a default comes from there
    spec = importlib.util.spec_from_file_location("sglang_nccl_ras", FILE)
    reader = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = reader
    spec.loader.exec_module(reader)
    with Job() as job:
        client, detector = reader.RasSocketClient.from_endpoint(job.address), reader.RasDetector(stuck_polls=3)

        def look():
            status = client.poll_status()
            return status, detector.evaluate(status, time.time())

        for _ in range(6):
            status, found = look()
            assert found.poll_success and status.communicators[0].ranks_count == 4, status
            assert found.worst_state in (reader.RasState.HEALTHY, reader.RasState.SUSPECT), found
            assert not (found.total_missing or found.total_dead or found.total_ranks_in_error), found
            job.wait("the job runs too long")
        job.pause()
        same = 0
        while same < 3:
            before, (status, found) = status, look()
            same = same + 1 if status.communicators == before.communicators else 0
            job.wait("the counts do not stop")
        behind = min(status.communicators[0].ranks, key=lambda r: sum(r.collective_counts.values()))
        assert found.divergence_comms and found.worst_state == reader.RasState.SUSPECT and behind.rank == 1, found
        os.kill(behind.pid, signal.SIGSTOP)
        try:
            while not found.total_missing:
                job.wait("the stopped process is not missed")
                status, found = look()
            missing = [r.rank for r in status.communicators[0].missing_ranks]
            assert missing == [1] and found.total_unresponsive == 1, status.raw
        finally:
            os.kill(behind.pid, signal.SIGCONT)
        print("rank 1 of 4 is behind, then unresponsive")


main()
