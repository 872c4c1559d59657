#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=240
# Where the perf binaries' ranks come from: threads, groups, local processes, launchers' variables; and what is said when a
# process dies.
set -u
perf=$HK_BUILD/bin/all_reduce_perf runs=0
. tests/support/suite.sh
[ -x "$perf" ] || { echo "the perf binaries are not built"; exit 77; }

good() { # ranks arguments...
  local found
  runs=$((runs + 1))
  timeout 60 "$perf" -b 8 -e 8K -f 32 -n 3 "${@:2}" >"$tmp/out" 2>"$tmp/err" || complain "'${*:2}' ends with code $?: $(cat "$tmp/out" "$tmp/err")"
  found=$(grep -c '^#  Rank' "$tmp/out")
  [ "$found" = "$1" ] || complain "'${*:2}' has $found ranks, not $1"
  grep -q 'values : 0 OK' "$tmp/out" || complain "'${*:2}': wrong elements"
}
good 1
good 2 --procs 2
good 3 --procs 3
good 8 --procs 8
good 4 -t 2 -g 2
good 6 --procs 3 -t 2
good 8 --procs 2 -t 2 -g 2
good 4 -t 4 -p 1
good 4 --procs 2 -g 2 -p 1
for extra in "-z 1" "-z 2" "-z 3" "-m 5" "-R 1" "-R 2" "-N 2" "-a 0" "-a 2" "-a 3" "-C 1" "-y 0" "-T 30" "-M 1" "-w 0 -c 0 -z 1 -m 2"; do
  # shellcheck disable=SC2086 # words
  if [ "$extra" = "${extra/-c 0/}" ]; then good 4 --procs 2 -t 2 $extra; fi
done

# One process a rank with a launcher's variables and no launcher.
several() { # name ranks variables-with-RANK-and-SIZE...
  local r pids=() pid code=0
  runs=$((runs + 1))
  for ((r = 0; r < $2; r++)); do
    local variables=("${@:3}")
    variables=("${variables[@]//@R/$r}")
    env "${variables[@]//@N/$2}" timeout 60 "$perf" -b 8 -e 8K -f 32 -n 3 >"$tmp/out.$r" 2>&1 &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  [ $code = 0 ] && grep -q 'values : 0 OK' "$tmp/out.0" || complain "$1 ends with code $code: $(cat "$tmp"/out.*)"
  [ "$(grep -c '^#  Rank' "$tmp/out.0")" = "$2" ] || complain "$1 has the wrong number of ranks"
  rm -f "$tmp"/out.*
}
port=$((20000 + $$ % 9000))
several "Open MPI" 3 OMPI_COMM_WORLD_RANK=@R OMPI_COMM_WORLD_SIZE=@N OMPI_COMM_WORLD_LOCAL_SIZE=@N PMIX_NAMESPACE=test.$$
several "Open MPI, hosts unknown" 2 OMPI_COMM_WORLD_RANK=@R OMPI_COMM_WORLD_SIZE=@N PMIX_NAMESPACE=other.$$ "HOCKET_PERF_DIR=$tmp"
several "MPICH" 3 PMI_RANK=@R PMI_SIZE=@N MPI_LOCALNRANKS=@N PMI_JOBID=test.$$
several "Slurm" 3 SLURM_PROCID=@R SLURM_NTASKS=@N SLURM_LOCALID=@R SLURM_JOB_ID=$$
several "torchrun" 3 RANK=@R WORLD_SIZE=@N LOCAL_RANK=@R MASTER_ADDR=127.0.0.1 "MASTER_PORT=$port"
several "torchrun with its own store" 2 RANK=@R WORLD_SIZE=@N MASTER_ADDR=localhost "MASTER_PORT=$port" TORCHELASTIC_USE_AGENT_STORE=True
for mpirun in "mpirun.openmpi --allow-run-as-root --oversubscribe" "mpirun.mpich"; do
  command -v "${mpirun%% *}" >/dev/null || { echo "SKIP: ${mpirun%% *} is not here"; continue; }
  runs=$((runs + 1))
  # shellcheck disable=SC2086 # words
  timeout 60 $mpirun -np 2 "$perf" -b 8 -e 8K -f 32 -n 3 >"$tmp/out" 2>&1 || complain "$mpirun: $(cat "$tmp/out")"
  grep -q 'values : 0 OK' "$tmp/out" && [ "$(grep -c '^#  Rank' "$tmp/out")" = 2 ] || complain "$mpirun: $(cat "$tmp/out")"
done

# Hosts of MPICH: two names of this machine are two of its proxies, which start their ranks without ssh. Its ranks have no name of
# the job, so they need an address.
two_hosts="mpirun.mpich -np 2 -hosts localhost,127.0.0.1"
if command -v mpirun.mpich >/dev/null; then
  runs=$((runs + 2))
  for given in "-genv MASTER_ADDR 127.0.0.1 -genv MASTER_PORT $((port + 1))" "-genv HOCKET_JOB test.$$ -genv HOCKET_PERF_DIR $tmp"; do
    # shellcheck disable=SC2086 # words
    timeout 60 $two_hosts $given "$perf" -b 8 -e 8 -n 2 >"$tmp/out" 2>&1 && grep -q 'values : 0 OK' "$tmp/out" ||
      complain "$two_hosts $given: $(cat "$tmp/out")"
  done
  timeout 60 $two_hosts "$perf" -b 8 -e 8 -n 2 >"$tmp/out" 2>&1 && complain "MPICH on two hosts runs without an address"
  grep -q 'set MASTER_ADDR and MASTER_PORT' "$tmp/out" || complain "MPICH on two hosts is not helped: $(cat "$tmp/out")"
fi

# A process of another job at the same port is refused and says so, and the job goes on.
job="env WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$((port + 2)) timeout 60"
RANK=0 $job "$perf" -b 8 -e 8 -n 2 >"$tmp/out" 2>"$tmp/err" &
first=$!
RANK=1 HOCKET_JOB=another $job "$perf" >"$tmp/out.1" 2>"$tmp/err.1" && complain "a process of another job runs"
grep -q "process 1 of 2 did not meet the others: two jobs have the same address .* of HOCKET_JOB=another" "$tmp/err.1" ||
  complain "another job: $(cat "$tmp/err" "$tmp/err.1")"
RANK=1 $job "$perf" -b 8 -e 8 -n 2 >"$tmp/out.1" 2>&1 && wait $first || complain "after another job: $(cat "$tmp/err" "$tmp/out.1")"

# Wrong numbers are named on both sides, a wrong user by its process; and a process that finds nothing says where it looks.
meet() { # process:number-of-processes port command-prefix...
  env RANK=${1%%:*} WORLD_SIZE=${1##*:} MASTER_ADDR=127.0.0.1 "MASTER_PORT=$2" "${@:3}" "$perf" -b 8 -e 8 -n 2
}
meet 1:2 $((port + 3)) env HOCKET_WATCHDOG=2 timeout 7 >"$tmp/alone" 2>&1 &
alone=$!
meet 0:2 $((port + 4)) timeout 3 >"$tmp/sizes.0" 2>&1 &
meet 1:3 $((port + 4)) timeout 3 >"$tmp/sizes.1" 2>&1 &
if [ "$(id -u)" = 0 ]; then
  meet 0:2 $((port + 5)) timeout 3 >"$tmp/users.0" 2>&1 &
  meet 1:2 $((port + 5)) timeout 3 setpriv --reuid 65534 --clear-groups env LD_LIBRARY_PATH="$HK_BUILD/lib" >"$tmp/users.1" 2>&1 &
fi
wait $alone
wait
for process in 0 1; do
  # the rank that came first is named last
  grep -Eq "process $process of .* did not meet the others: ranks disagree on the number of ranks .*: (rank 1 gives 3 and 1, rank 0 gives 2 and 1|rank 0 gives 2 and 1, rank 1 gives 3 and 1)" \
    "$tmp/sizes.$process" || complain "wrong numbers: $(cat "$tmp"/sizes.*)"
done
[ "$(id -u)" != 0 ] || grep -q "two jobs .* the root there is of .* user id 0, and this rank, 1 of 2, of .* user id 65534" "$tmp/users.1" ||
  complain "another user: $(cat "$tmp"/users.*)"
grep -q "rank 1 looks for the root of the given address .*127.0.0.1<$((port + 3))>.*Connection refused" "$tmp/alone" ||
  complain "a process that finds nothing says: $(cat "$tmp/alone")"

# Idle connections and some that send a byte now and then delay no process.
python3 - $((port + 6)) <<'PYTHON' &
import socket, sys, time
end, idle = time.monotonic() + 60, []
while len(idle) < 40 and time.monotonic() < end:
    try:
        idle.append(socket.create_connection(("127.0.0.1", int(sys.argv[1])), timeout=5))
    except OSError:
        time.sleep(0.005)
while time.monotonic() < end:
    for s in idle[::2]:
        try:
            s.send(b"h")
        except OSError:
            sys.exit()
    time.sleep(0.1)
PYTHON
strangers=$!
meet 0:3 $((port + 6)) timeout 60 >"$tmp/out" 2>&1 &
first=$!
sleep 0.5
began=$(date +%s%N)
meet 1:3 $((port + 6)) timeout 60 >"$tmp/out.1" 2>&1 &
meet 2:3 $((port + 6)) timeout 60 >"$tmp/out.2" 2>&1
wait $first || complain "with idle connections: $(cat "$tmp"/out*)"
kill $strangers 2>/dev/null
[ $((($(date +%s%N) - began) / 1000000)) -lt 5000 ] || complain "idle connections delay processes by seconds"

# The file of a job of one host is this user's, and others cannot read it. A file of another user with its name is not used.
file_of() { # process
  env OMPI_COMM_WORLD_RANK="$1" OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_NAMESPACE="file.$$" "HOCKET_PERF_DIR=$tmp" timeout 60 "$perf" -b 8 -e 8 -n 2
}
file_of 0 >"$tmp/out" 2>&1 &
first=$!
for ((i = 0; i < 200; i++)); do
  file=$(compgen -G "$tmp/.hocket-*") && break
  sleep 0.02
done
[ "$(stat -c '%a %u' "$file")" = "600 $(id -u)" ] || complain "the file's mode and owner are $(stat -c '%a %u' "$file")"
if [ "$(id -u)" = 0 ]; then
  cp "$file" "${file%-*}-000000"
  chown 65534 "${file%-*}-000000"
  file_of 1 >"$tmp/out.1" 2>&1 && wait $first || complain "next to another user's file: $(cat "$tmp/out" "$tmp/out.1")"
  file_of 1 >"$tmp/out.1" 2>&1 &
  other=$!
  for ((i = 0; i < 400; i++)); do
    grep -q 'one there is of user id 65534, and is not used' "$tmp/out.1" && break
    sleep 0.02
  done
  kill $other
  grep -q 'one there is of user id 65534, and is not used' "$tmp/out.1" || complain "another user's file: $(cat "$tmp/out.1")"
else
  file_of 1 >"$tmp/out.1" 2>&1 && wait $first || complain "the file: $(cat "$tmp/out" "$tmp/out.1")"
fi

# An unknown host name (no name has so long a part) is reported long before the end of the wait.
RANK=1 WORLD_SIZE=2 MASTER_ADDR=$(printf 'x%.0s' {1..70}) MASTER_PORT=$port "$perf" >"$tmp/out" 2>"$tmp/err" &
parent=$!
for ((i = 0; i < 200; i++)); do
  grep -q "looks for the address of 'xxx" "$tmp/err" && break
  sleep 0.05
done
grep -q "rank 1 of 2 looks for the address of 'xxx" "$tmp/err" || complain "an unknown host name is not reported: $(cat "$tmp/out" "$tmp/err")"
kill $parent
wait $parent 2>/dev/null

# Two groups side by side.
NCCL_TESTS_SPLIT="MOD 2" "$perf" --procs 4 -b 8 -e 1K -f 8 -n 3 >"$tmp/out" 2>&1 || complain "NCCL_TESTS_SPLIT: $(cat "$tmp/out")"
[ "$(awk '/^#  Rank/ { print $5 }' "$tmp/out" | tr '\n' ' ')" = "0 1 0 1 " ] || complain "NCCL_TESTS_SPLIT: wrong groups: $(cat "$tmp/out")"

# Not a zombie: in a container the first process may not reap those that it inherits.
alive() { grep -qs '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$1/status"; }

# Starts a benchmark without an end, and waits until its processes have said who they are. Sets parent and pids.
begin() { # processes
  : >"$tmp/out" # what an earlier run has written would be taken for this one's
  "$perf" --procs "$1" -b 1M -e 1M -n 1000000 -c 0 >"$tmp/out" 2>"$tmp/err" &
  parent=$!
  for ((i = 0; i < 100; i++)); do
    grep -q '(GB/s)' "$tmp/out" && break
    sleep 0.1
  done
  mapfile -t pids < <(sed -n 's/^#  Rank .* Pid *\([0-9]*\) on .*/\1/p' "$tmp/out")
  [ ${#pids[@]} = "$1" ] || complain "not $1 processes: $(cat "$tmp/out" "$tmp/err")"
}

# kill -9 of one process: the run ends soon, names the killed process, and leaves no process running.
begin 3
sleep 0.5
began=$SECONDS
kill -9 "${pids[1]}"
wait $parent
code=$?
[ $code = 137 ] || complain "after kill -9 the exit code is $code, not 137"
[ $((SECONDS - began)) -le 10 ] || complain "after kill -9 the run went on for $((SECONDS - began)) s"
grep -q "process 1 of 3 (pid ${pids[1]}) was killed by signal 9" "$tmp/err" || complain "the killed process is not named: $(cat "$tmp/err")"
for pid in "${pids[@]}"; do alive "$pid" && complain "process $pid is left"; done

# A user's small stacks are the user's threads'.
(ulimit -s 128 && exec "$perf" -b 8 -e 8 -n 1 -w 0) >"$tmp/out" 2>"$tmp/err" || complain "with ulimit -s 128 it ends with code $?"

# The parent's end is its processes' end.
begin 2
kill -9 $parent
wait $parent 2>/dev/null
for ((i = 0; i < 50; i++)); do
  left=0
  for pid in "${pids[@]}"; do alive "$pid" && left=1; done
  [ $left = 1 ] || break
  sleep 0.1
done
for pid in "${pids[@]}"; do alive "$pid" && complain "process $pid outlives its parent"; done
finish "$runs ways to start ranks"
