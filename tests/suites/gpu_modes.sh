#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The short form of make gpu-modes: the tests of calls and replays in each mode of the emulated driver.
# check: timeout=120
set -u
[ -e "$HK_BUILD/cudaemu/kernels.so" ] || { echo "SKIP: the emulated driver's kernels were not compiled, which takes g++"; exit 77; }
SHORT=1 LIMIT=60 exec tests/gpu/modes.sh
