#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180
# Runs every example as its first comment says; launchers are imitated by their environment variables.
set -u
bin=$HK_BUILD/examples bad=0 ran=0
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
complain() { echo "$*"; bad=1; }
[ -x "$bin/many_ranks" ] || { echo "the examples are not built"; exit 77; }

single() { # name arguments...
  ran=$((ran + 1))
  timeout 30 "$bin/$1" "${@:2}" >"$tmp/out" 2>&1 || { complain "$* ended with code $?:"; cat "$tmp/out"; }
}

# No timeout in between: to mpi_style the common parent stands for the job.
# One process a rank with the variables that `rank_variables RANK` prints; all must end well and say what they did.
several() { # name ranks
  local pids=() r pid code=0
  ran=$((ran + 1))
  for ((r = 0; r < $2; r++)); do
    # shellcheck disable=SC2046 # the variables are words
    env TMPDIR="$tmp" $(rank_variables "$r" "$2") "$bin/$1" >"$tmp/out.$r" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  [ "$code" = 0 ] && [ "$(grep -l '^rank' "$tmp"/out.* | wc -l)" = "$2" ] && { rm -f "$tmp"/out.*; return; }
  complain "$1 with $2 ranks ended with code $code:"
  cat "$tmp"/out.*
  rm -f "$tmp"/out.*
}
port=$((20000 + $$ % 9000))

single first
[ "$(sort "$tmp/out" | tr '\n' ';')" = "rank 0 gave 1 and got the sum 3;rank 1 gave 2 and got the sum 3;" ] || complain "first printed: $(cat "$tmp/out")"
single many_ranks
single many_ranks 9
single nonblocking
single split
single overlap
single ring
single ring 1
rank_variables() { echo "OMPI_COMM_WORLD_RANK=$1 OMPI_COMM_WORLD_SIZE=$2"; }
several mpi_style 3
rank_variables() { echo "PMI_RANK=$1 PMI_SIZE=$2 NCCL_COMM_ID=127.0.0.1:$port"; }
several mpi_style 2
rank_variables() { echo "RANK=$1 WORLD_SIZE=$2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 1))"; }
several torchrun_style 3
rank_variables() { echo "SLURM_PROCID=$1 SLURM_NTASKS=$2 SLURM_JOB_ID=$((port + 2))"; }
several slurm_style 3
if command -v python3 >/dev/null; then
  ran=$((ran + 1))
  timeout 60 python3 examples/ctypes_style.py "$HK_BUILD/lib/libnccl.so.2" 3 >"$tmp/out" 2>&1
  [ "$(grep -c 'sums are right' "$tmp/out")" = 3 ] || { complain "ctypes_style.py:"; cat "$tmp/out"; }
else
  echo "SKIP: ctypes_style.py wants python3, which is not here"
fi

# Every example is run above.
for source in examples/*.c examples/*.py; do
  grep -qE "^(single|several| *timeout .*) (examples/)?$(basename "$source" .c)\b" "$0" || complain "$source is run by no test"
done
[ $bad = 0 ] && echo "$ran runs of $(find examples -name '*.c' -o -name '*.py' | wc -l) examples"
exit $bad
