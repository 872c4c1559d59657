#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh: the library, the perf binaries and an example under a real Slurm (cluster.sh), as docs/deploy.md shows them.
set -u
cd "$(dirname "$0")/../.." || exit 1
HK_BUILD=$(realpath "${HK_BUILD:-build/gcc}")
export HK_BUILD
if [ -z "${SLURM_CONF:-}" ]; then
  [ "$(id -u)" = 0 ] || { echo "SKIP: Slurm's daemons need root"; exit 77; }
  for command in srun slurmctld slurmd munged; do
    PATH=$PATH:/usr/sbin command -v $command >/dev/null || { echo "SKIP: $command is not here (Debian: slurm-wlm, munge)"; exit 77; }
  done
  exec tests/slurm/cluster.sh "$0"
fi
tmp=$(mktemp -d) failures=0
trap 'rm -rf "$tmp"' EXIT
perf=$HK_BUILD/bin/all_reduce_perf
export NCCL_DEBUG=WARN HOCKET_DEVICE=host

complain() { # what
  failures=$((failures + 1))
  echo "FAIL: $1"
  sed 's/^/      | /' "$tmp/out"
}
ranks_of() { grep -c "$1" "$tmp/out"; }

# ---- four tasks on two nodes ----
timeout 60 srun -N 2 -n 4 "$perf" -b 8 -e 64K -f 8 -n 5 >"$tmp/out" 2>&1 || complain "srun all_reduce_perf ends with $?"
grep -q 'values : 0 OK' "$tmp/out" && [ "$(ranks_of '^#  Rank')" = 4 ] || complain "srun all_reduce_perf: wrong table"

for mpi in $(srun --mpi=list 2>&1 | grep -o 'pmi2'); do
  timeout 60 srun --mpi="$mpi" -N 2 -n 4 "$perf" -b 8 -e 64K -f 8 -n 5 >"$tmp/out" 2>&1 || complain "srun --mpi=$mpi ends with $?"
  grep -q 'values : 0 OK' "$tmp/out" && [ "$(ranks_of '^#  Rank')" = 4 ] || complain "srun --mpi=$mpi: wrong table"
done

timeout 60 srun -N 2 --ntasks-per-node 2 "$HK_BUILD/examples/launched" >"$tmp/out" 2>&1 || complain "launched ends with $?"
[ "$(ranks_of 'of 4: the maximum')" = 4 ] || complain "launched: not four ranks"

# ---- two steps of one job, one after the other and at once ----
cat >"$tmp/job" <<END
#!/bin/bash
srun -N 2 -n 4 $perf -b 8 -e 8 -n 5
srun --overlap -N 2 -n 4 $perf -b 8 -e 8K -f 32 -n 50 & srun --overlap -N 2 -n 4 $perf -b 8 -e 8K -f 32 -n 50
wait
END
timeout 100 sbatch --wait -Q -N 2 --ntasks-per-node 2 -o "$tmp/out" "$tmp/job" >"$tmp/sbatch" 2>&1 || complain "sbatch: $(cat "$tmp/sbatch")"
[ "$(ranks_of 'values : 0 OK')" = 3 ] || complain "sbatch: not three results"

# ---- two jobs with one NCCL_COMM_ID: the first works, the second's ranks report both jobs ----
export NCCL_COMM_ID=127.0.0.1:29911 HOCKET_BOOTSTRAP_TIMEOUT=10
cat >"$tmp/late" <<END
#!/bin/bash
[ "\$SLURM_PROCID" = 0 ] || { touch $tmp/waits; until [ -e $tmp/go ]; do sleep 0.05; done; }
exec $HK_BUILD/examples/launched
END
chmod +x "$tmp/late"
timeout 60 srun -n 2 "$tmp/late" >"$tmp/first" 2>&1 &
first=$!
until [ -e "$tmp/waits" ] || ! kill -0 $first 2>/dev/null; do sleep 0.05; done
timeout 60 srun -n 2 "$HK_BUILD/examples/launched" >"$tmp/out" 2>&1 && complain "two jobs with one NCCL_COMM_ID: the second one works"
grep -q 'SLURM_JOB_ID=[0-9]* SLURM_STEP_ID=0.*SLURM_JOB_ID=[0-9]* SLURM_STEP_ID=0' "$tmp/out" || complain "the error does not name both jobs"
touch "$tmp/go"
wait $first || { cp "$tmp/first" "$tmp/out"; complain "two jobs with one NCCL_COMM_ID: the first one fails"; }
unset NCCL_COMM_ID HOCKET_BOOTSTRAP_TIMEOUT

# ---- one task is killed: the others name its rank ----
timeout 60 srun -N 2 -n 4 "$perf" -b 8 -e 8 -n 100000000 -c 0 >"$tmp/out" 2>&1 &
job=$!
until victim=$(sed -n 's/^#  Rank  2 .*Pid *\([0-9]*\).*/\1/p' "$tmp/out") && [ -n "$victim" ] || ! kill -0 $job 2>/dev/null; do sleep 0.05; done
kill -9 "$victim"
wait $job && complain "a killed task: srun ends with 0"
grep -q "rank 2" <(grep -v '^#' "$tmp/out") || complain "a killed task: no message names rank 2"

[ $failures = 0 ] && echo "a real Slurm, two nodes: perf binaries, an example, steps at once, two jobs with one address, a killed task"
exit $((failures > 0))
