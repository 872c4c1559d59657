#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The protocols of links between GPUs under PTX's memory model: all executions of each litmus test, and which fences and
# ordered accesses are necessary (docs/gpu-memory-model.md).
set -u
cd "$(dirname "$0")/../.." || exit 1
command -v python3 >/dev/null || { echo "SKIP: python3 is not installed"; exit 77; }
exec python3 -B tests/litmus/litmus.py
