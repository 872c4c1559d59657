# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own tests of groups whose members change, with the backend hocket. They are not in PyTorch's wheel.

torch_fault.py SOURCES: a folder with PyTorch's sources. Each test that passes on Gloo must pass on Hocket.
"""
import os
import sys
import time
import unittest

FILE = os.path.join(sys.argv[1], "test", "distributed", "test_c10d_fault_tolerance.py")
sys.path.insert(0, os.path.dirname(FILE))
import test_c10d_fault_tolerance as own  # noqa: E402

import hocket.torch  # noqa: E402

hocket.torch.register()
TESTS = {name: own._make_fault_tolerance_test_class(name, "cpu") for name in ("gloo", "hocket")}
for kind in TESTS.values():  # the processes of a test find its class here by its name
    kind.__module__ = __name__
    globals()[kind.__name__] = kind


class Result(unittest.TestResult):
    """Notes which tests pass."""

    def __init__(self):
        super().__init__()
        self.good = set()

    def addSuccess(self, test):  # noqa: N802
        self.good.add(test._testMethodName)


def main():
    results, seconds = {}, {}
    for name, kind in TESTS.items():
        begin, results[name] = time.monotonic(), Result()
        unittest.TestLoader().loadTestsFromTestCase(kind).run(results[name])
        seconds[name] = time.monotonic() - begin
    bad = sorted(results["gloo"].good - results["hocket"].good)
    for test, error in results["hocket"].failures + results["hocket"].errors:
        print(f"  {test._testMethodName}: {error.splitlines()[-1][:300]}")
    print(f"{len(results['hocket'].good)} of PyTorch's tests of groups that change pass in {seconds['hocket']:.0f} s, "
          f"{len(results['gloo'].good)} on Gloo in {seconds['gloo']:.0f} s")
    return bool(bad) or not results["gloo"].good


if __name__ == "__main__":
    sys.exit(main())
