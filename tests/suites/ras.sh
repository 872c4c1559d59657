#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180 covers=src/ops/
# NCCL's RAS protocol with a job of four processes: reports, events, late, stopped and killed ranks, hostile clients, ncclras.
set -u
tests=tests/ras
. tests/support/suite.sh
[ -e "$HK_BUILD/python/hocket/lib/libhocket.so" ] || { echo "the Python package is not built: make python"; exit 77; }
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
export PYTHONPATH=$PWD/$HK_BUILD/python PYTHONDONTWRITEBYTECODE=1
mkdir "$tmp/job"
python3 $tests/check.py "$PWD/$HK_BUILD/bin/ncclras" "$tmp/job" || complain "see above"
$HK_BUILD/bin/ncclras --help | grep -q "RAS protocol" || complain "ncclras --help is not that of hocket ras"
finish "reports, events, hostile clients, ncclras"
