#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# demo.sh BUILD: an allreduce between two processes on this machine, every element checked.
perf=$1/bin/all_reduce_perf
[ -x "$perf" ] || { echo "$perf is not built: this source tree has no src/perf/all_reduce_perf.c"; exit 1; }
# The slots between the processes are memory that nobody has touched yet: ten warm-up rounds go through all of them.
set -- --procs 2 -b 8 -e 128M -f 4 -w 10
echo "$perf $*"
exec "$perf" "$@"
