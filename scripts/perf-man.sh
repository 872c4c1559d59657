#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# perf-man.sh BINARY: the manual page of the *_perf programs on stdout, its options taken from the binary's own --help.
set -eu
help=$("$1" --help)
quote() { sed -e 's/\\/\\e/g' -e 's/-/\\-/g' -e "s/^\([.']\)/\\\\\&\1/"; }
cat <<'END'
.TH HOCKET-PERF 1 "" "Hocket"
.SH NAME
all_reduce_perf, all_gather_perf, reduce_scatter_perf, broadcast_perf, reduce_perf, sendrecv_perf, put_perf, alltoall_perf,
gather_perf, scatter_perf, hypercube_perf, all_gatherv_perf, reduce_scatterv_perf, alltoallv_perf \- measure and check
collective operations
.SH SYNOPSIS
.B all_reduce_perf
.RI [ options ]
.SH DESCRIPTION
Each program runs its operation over a range of sizes, checks every element of the results, and prints time, algorithm
bandwidth and bus bandwidth in nccl-tests' columns.
Out of place and in place are measured apart; #wrong counts elements that are not what they should be.
The programs use NCCL's API only: with another libnccl.so.2 in the loader's path they measure that one.
.PP
Ranks are threads (\-t, \-g), processes started here (\-\-procs), or processes that a launcher started: Open MPI, MPICH,
Slurm and torchrun are recognised from their environment.
.SH OPTIONS
END
# "  -t,--nthreads <threads>   text", the text on the next line where the left side is long.
quote <<<"$help" | awk '
  /^  \\-/ {
    line = substr($0, 3)
    cut = match(line, /   *[^ ]/)
    left = cut ? substr(line, 1, cut - 1) : line
    print ".TP\n.B " left
    if (cut) { text = substr(line, cut); sub(/^ */, "", text); print text }
    next
  }
  /^   / { sub(/^ */, ""); print }
'
cat <<'END'
.SH ENVIRONMENT
.TP
.BR MASTER_ADDR ", " MASTER_PORT
Where process 0 is met, under any launcher.
.TP
.BR HOCKET_JOB_DIR ", " HOCKET_PERF_DIR
Folder of the file through which processes meet, where neither those two nor Slurm say.
.TP
.B NCCL_TESTS_SPLIT
Divide the processes into groups: AND, OR, MOD or DIV and a number.
.TP
.B NCCL_TESTS_MIN_BW
Fail when the average bus bandwidth is below 0.9 times this.
.TP
.B NCCL_TESTS_DEVICE
The first device.
.SH EXIT STATUS
0 when all elements are right, 7 when not; 1 when the run failed, 3 when a call of the library did, 4 after the time of \-T,
5 for what is not possible here, 255 for a wrong option, 128 + n when a process of \-\-procs was killed by signal n.
.SH EXAMPLES
.nf
all_reduce_perf \-\-procs 4 \-b 8 \-e 64M \-f 2
mpirun \-np 4 reduce_perf \-d all \-o all \-b 1K \-e 1K
LD_PRELOAD=/opt/other/libnccl.so.2 alltoall_perf \-t 2 \-g 2 \-J other.json
.fi
.SH SEE ALSO
.BR hocket-parameters (7)
END
