# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Hosts made of network namespaces, for suites and benchmarks: source this.  Needs root.  Everything that is made here lives
# in namespaces of its own, named after this shell's process id, and is removed when the shell ends.
#
#   netns_need                    ends the suite with 77 (skip) and the reason where hosts cannot be made
#   netns_hosts N                 makes hosts 1..N, host i with eth0 10.77.0.i/24, joined by a bridge
#   netns_pair                    makes hosts 1 and 2 with a cable between them, and nothing else on it
#   netns_net K                   joins them by one more network: eth<K> with 10.<77+K>.0.i/24
#   netns_switch DELAY_MS LOSS%   puts a switch with delay and loss in the bridge's place (network 0)
#   netns_run I COMMAND...        runs a command on host i
#   netns_start I LOG COMMAND...  the same in the background; $! is its process id
#   netns_cut I [K]               frames of host i are lost from now on, silently; netns_mend I [K] ends that
#   netns_ranks LOGS COMMAND...   starts the command once a host, as one job: rank I - 1 on host I, output in LOGS.I;
#                                 netns_pids has the process ids
#   netns_wait SECONDS            waits for them; netns_codes has their exit codes (124: still running, then killed)
#   netns_ip I [K]                prints the host's address
netns_prefix=hk$$
netns_count=0
netns_jobs=()

netns_name() { echo "${netns_prefix}h$1"; }
netns_ip() { echo "10.$((77 + ${2:-0})).0.$1"; }

netns_skip() {
  echo "SKIP: $*"
  exit 77
}

netns_need() {
  [ "$(id -u)" = 0 ] || netns_skip "hosts as network namespaces need root"
  command -v ip >/dev/null || netns_skip "no ip command (package iproute2)"
  local why
  why=$(ip netns add "${netns_prefix}t" 2>&1) || netns_skip "this system does not let us make network namespaces: $why"
  why=$(ip -n "${netns_prefix}t" link add name br0 type bridge 2>&1 &&
    ip -n "${netns_prefix}t" link add name v0 type veth peer name v1 2>&1) && why=
  ip netns del "${netns_prefix}t"
  [ -z "$why" ] || netns_skip "no bridges or no veth pairs can be made: $why"
}

netns_end() {
  local pid ns
  for pid in "${netns_jobs[@]}"; do kill "$pid" 2>/dev/null; done
  for ns in $(ip netns list 2>/dev/null | awk -v p="$netns_prefix" 'index($1, p) == 1 { print $1 }'); do
    ip netns del "$ns"
  done
}
trap netns_end EXIT

netns_net() { # number
  local k=$1 i host bridge=${netns_prefix}b
  ip -n "$bridge" link add name "br$k" type bridge
  ip -n "$bridge" link set "br$k" up
  for ((i = 1; i <= netns_count; i++)); do
    host=$(netns_name "$i")
    ip -n "$bridge" link add "p$k-$i" type veth peer name "eth$k" netns "$host"
    ip -n "$bridge" link set "p$k-$i" master "br$k" up
    ip -n "$host" addr add "$(netns_ip "$i" "$k")/24" dev "eth$k"
    ip -n "$host" link set "eth$k" up
  done
  netns_settle "eth$k"
}

# The kernel reports a cable up to a second after both ends are up; before that no rank would choose it.
netns_settle() { # interface
  local i n
  for ((i = 1; i <= netns_count; i++)); do
    for ((n = 0; n < 60; n++)); do
      ip -n "$(netns_name "$i")" -o link show "$1" | grep -q 'state UP' && break
      sleep 0.05
    done
  done
}

netns_bare() { # count
  local i
  netns_count=$1
  for ((i = 1; i <= netns_count; i++)); do
    ip netns add "$(netns_name "$i")"
    ip -n "$(netns_name "$i")" link set lo up
  done
}

netns_hosts() { # count
  netns_bare "$1"
  ip netns add "${netns_prefix}b"
  netns_net 0
}

netns_pair() {
  local i
  netns_bare 2
  ip -n "$(netns_name 1)" link add eth0 type veth peer name eth0 netns "$(netns_name 2)"
  for i in 1 2; do
    ip -n "$(netns_name $i)" addr add "$(netns_ip $i)/24" dev eth0
    ip -n "$(netns_name $i)" link set eth0 up
  done
  netns_settle eth0
}

netns_switch() { # delay_ms loss_percent
  local i ports=() log
  for ((i = 1; i <= netns_count; i++)); do
    ip -n "${netns_prefix}b" link set "p0-$i" nomaster
    # Segments as small as on a real wire, so that one loss is the loss of one of them.
    ip -n "$(netns_name "$i")" link set eth0 gso_max_segs 1 2>/dev/null
    ports+=("p0-$i")
  done
  log=$(mktemp)
  ip netns exec "${netns_prefix}b" "${HK_BUILD:-build/gcc}/helpers/switch" "$1" "$2" "${ports[@]}" >"$log" &
  netns_jobs+=($!)
  for ((i = 0; i < 100; i++)); do grep -q switching "$log" && break || sleep 0.05; done
  rm -f "$log"
}

netns_run() { # host command...
  local i=$1
  shift
  ip netns exec "$(netns_name "$i")" "$@"
}

netns_start() { # host log command...
  local i=$1 log=$2
  shift 2
  ip netns exec "$(netns_name "$i")" "$@" >"$log" 2>&1 &
  netns_jobs+=($!)
}

netns_cut() { ip -n "${netns_prefix}b" link set "p${2:-0}-$1" nomaster; }
netns_mend() { ip -n "${netns_prefix}b" link set "p${2:-0}-$1" master "br${2:-0}"; }

netns_ranks() { # logs command...
  local i logs=$1
  shift
  netns_pids=()
  netns_job=$((${netns_job:-29500} + 1))
  for ((i = 1; i <= netns_count; i++)); do
    # Namespaces of one machine say the same of their host: without a name of their own they would share memory.
    netns_start "$i" "$logs.$i" env RANK=$((i - 1)) WORLD_SIZE=$netns_count NCCL_HOSTID="host$i" \
      MASTER_ADDR="$(netns_ip 1 "${netns_master:-0}")" MASTER_PORT=$netns_job HOCKET_SPIN=50 "$@"
    netns_pids+=($!)
  done
}

netns_wait() { # seconds
  local i pid deadline=$((SECONDS + $1))
  netns_codes=()
  for pid in "${netns_pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.05; done
    if kill -0 "$pid" 2>/dev/null; then
      kill -KILL "$pid"
      wait "$pid" 2>/dev/null
      netns_codes+=(124)
    else
      wait "$pid" 2>/dev/null
      netns_codes+=($?)
    fi
  done
}
