#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=240
# Refuses some requests of memory, one in each job: connections that come before their rank can keep them, or while it fails.
# `make check-allocations` refuses all of them.
set -u
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
# Other tests run at the same time: a bound is there to find what has no end.
export HOCKET_TEST_SLACK=${HOCKET_TEST_SLACK:-4}
python3 tests/faults/sweep.py --only enomem-split-shm --most 16 || exit 1
exec python3 tests/faults/sweep.py --only enomem-init-tcp --from 17 --most 12 --jobs 6
