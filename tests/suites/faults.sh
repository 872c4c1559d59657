#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=240 covers=src/failure/
# Some cells of the fault matrix (docs/faults.md); `make check-faults` runs all of them.
set -u
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
# Other tests run at the same time: a bound is there to find what has no end.
export HOCKET_TEST_SLACK=${HOCKET_TEST_SLACK:-4}
exec python3 tests/faults/matrix.py --short
