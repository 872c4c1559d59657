# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of torch.distributed, which its wheel brings, with the backend hocket in Gloo's place.

torch_own.py [--gloo] [PATTERN]: the tests whose name contains the pattern. Tests that a backend other than Gloo skips
run too. Every failure must stand in torch_own.list, with its reason.
"""
import os
import re
import sys
import tempfile
import time
import unittest

os.environ.setdefault("WORLD_SIZE", "3")
os.environ["BACKEND"] = "gloo"  # what decorators of tests look at
os.environ.setdefault("TEMP_DIR", tempfile.mkdtemp())
os.environ["NCCL_DEBUG"] = "NONE"
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")

import torch  # noqa: E402
import torch.testing._internal.distributed.distributed_test as own  # noqa: E402

import hocket.torch  # noqa: E402

hocket.torch.register()
backend = "gloo" if "--gloo" in sys.argv else "hocket"
# Tests and their decorators look at BACKEND, so that it stays "gloo"; who asks for "gloo" gets the other one.
initialize = own.dist.init_process_group


def init_process_group(*arguments, **named):
    initialize(*arguments, **{**named, "backend": backend})


own.dist.init_process_group = init_process_group
HERE = os.path.dirname(os.path.abspath(__file__))


class Tests(own.TestDistBackend, own.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)


def known():
    """Name and reason of tests that do not pass with this version of PyTorch."""
    with open(os.path.join(HERE, "torch_own.list")) as file:
        rows = [line.rstrip("\n").partition("  ") for line in file if line.strip() and not line.startswith("#")]
    named = [(*name.partition("@")[::2], reason.strip()) for name, _, reason in rows]
    return {name: reason for name, versions, reason in named
            if torch.__version__.startswith(tuple(versions.split(",")))}


class Result(unittest.TestResult):
    """One line a test that does not pass."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.bad, self.good, self.left_out = {}, [], 0

    def addSuccess(self, test):  # noqa: N802
        self.good.append(test._testMethodName)

    def addSkip(self, test, reason):  # noqa: N802
        self.left_out += 1

    def addFailure(self, test, error):  # noqa: N802
        last = [line for line in str(error[1]).splitlines() if re.match(r"[\w.]*(Error|Exception)\b", line)]
        self.bad[test._testMethodName] = last[-1] if last else "?"
        print(f"  {test._testMethodName}: {last[-1][:300] if last else '?'}", flush=True)

    addError = addFailure  # noqa: N815


def main():
    wanted = next((a for a in sys.argv[1:] if not a.startswith("--")), "")
    begin, result, suite = time.monotonic(), Result(), unittest.TestSuite()
    for name in unittest.TestLoader().getTestCaseNames(Tests):
        if wanted in name:
            suite.addTest(Tests(name))
    suite.run(result)
    excuses = known() if backend == "hocket" else {}
    new = sorted(set(result.bad) - set(excuses))
    mended = sorted(set(excuses) & set(result.good))
    for name in mended:
        print(f"  {name} is in torch_own.list, and passes")
    print(f"PyTorch's own tests, {backend}, {os.environ['WORLD_SIZE']} processes: {len(result.good)} passed, "
          f"{len(result.bad)} failed ({len(new)} of them not in torch_own.list), {result.left_out} skipped, "
          f"{time.monotonic() - begin:.0f} s")
    return bool(new)


if __name__ == "__main__":
    sys.exit(main())
