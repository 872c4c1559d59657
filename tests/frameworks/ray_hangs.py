# SPDX-License-Identifier: Apache-2.0
"""Ray Train's hang detector, as its wheel has it, watches a job through ncclras: it sees nothing while the job runs, and finds the
communicator once a rank does not come.  Of Ray there is only that file: what it imports are stand-ins, and a worker runs in this process.
ray_hangs.py NCCL_RAS.PY NCCLRAS"""
import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
import types

from ras_job import Job

FILE, NCCLRAS = sys.argv[1], os.path.abspath(sys.argv[2])
VALUES = {"DEFAULT_NCCL_RAS_MIN_POLL_INTERVAL_S": 0.2, "DEFAULT_NCCL_RAS_CONFIRM_DURATION_S": 1.0, "NCCL_RAS_ACTION_FAIL": "fail",
          "NCCL_RAS_ACTION_OBSERVE": "observe", "DEFAULT_NCCL_RAS_ACTION": "fail", "NCCL_RAS_ADDR_ENV_VAR": "NCCL_RAS_ADDR",
          "env_float": lambda _, usual: usual, "get": lambda x, timeout=None: x}


class Stand(types.ModuleType):
    """A module that has every name: a value of the table, a name of a variable, or a class."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        made = VALUES.get(name) or (name if name.isupper() else type(name, (Exception if name.endswith("Error") else object,), {}))
        setattr(self, name, made)
        return made


class Stands(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if name.split(".")[0] == "ray" else None

    def create_module(self, spec):
        return Stand(spec.name)

    def exec_module(self, module):
        pass


class Worker:
    """Runs what it is told in this process."""

    def execute_async(self, call, *args):
        return call(*args)


class Group:
    def get_workers(self):
        return [Worker()]


def main():
    sys.meta_path.insert(0, Stands())
    spec = importlib.util.spec_from_file_location("ray_nccl_ras", FILE)
    reader = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = reader
    spec.loader.exec_module(reader)
    found = []

    class Detector(reader.NCCLRASCallback):
        def handle_confirmed_hangs(self, comms, report):
            found.append((comms, report))

        def handle_suspected_hangs(self, report):
            pass

    os.environ["PATH"] = os.path.dirname(NCCLRAS) + ":" + os.environ["PATH"]
    with Job() as job:
        detector, group, healthy = Detector(), Group(), 0
        try:
            detector.after_worker_group_start(group)
            while not found:
                assert detector._ras_poller is not None and not detector._is_ras_degraded, "the detector has given up"
                detector.after_worker_group_poll_status(None)
                if len(detector.ras_history) >= 5 and not healthy:
                    assert not detector.comm_deadlock_count, f"a hang in a job that runs: {detector.comm_deadlock_count}"
                    healthy = len(detector.ras_history)
                    job.pause()
                job.wait(f"no hang is found in {len(detector.ras_history)} reports")
            comms, report = found[0]
            counts = {r: ops["AllReduce"] + ops["Broadcast"] for r, ops in report.comm_op_counts[comms[0]].items()}
            assert len(counts) == 4 and min(counts, key=counts.get) == 1, f"the counts are {counts}"
            text = detector._ras_poller.query("text")
            assert "rank 1" in text, text
            print(f"{healthy} healthy reports, then rank 1 of 4 is behind in {len(comms)} communicator")
        finally:
            detector._retire_poller()


main()
