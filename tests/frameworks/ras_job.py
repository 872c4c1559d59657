# SPDX-License-Identifier: Apache-2.0
"""A job for readers of RAS: four ranks on host memory that run collectives (tests/ras/rank.py), and whose rank 1 can be paused."""
import os
import random
import subprocess
import sys
import tempfile
import time


class Job:
    """Runs in the block of a with statement. `address` is that of its RAS; NCCL_RAS_ADDR names it, too."""

    def __enter__(self):
        self.address = f"localhost:{random.randrange(10000, 20000)}"
        os.environ.update(NCCL_RAS_ADDR=self.address, HOCKET_DEVICE="host")
        self.folder = tempfile.TemporaryDirectory()
        rank = os.path.join("tests", "ras", "rank.py")
        self.process = subprocess.Popen([sys.executable, "-m", "hocket.run", "-n", "4", rank, self.folder.name])
        self.end = time.monotonic() + 60
        while not os.path.exists(self._place("ready")):
            assert self.process.poll() is None, "the job does not begin"
            self.wait("the job does not begin")
        return self

    def _place(self, name):
        return os.path.join(self.folder.name, name)

    def wait(self, failure):
        """A pause between two looks; `failure` if the job's minute is over."""
        assert time.monotonic() < self.end, failure
        time.sleep(0.05)

    def pause(self):
        open(self._place("pause"), "w").close()

    def __exit__(self, *failure):
        open(self._place("end"), "w").close()
        if os.path.exists(self._place("pause")):
            os.unlink(self._place("pause"))
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.folder.cleanup()
