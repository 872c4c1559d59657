# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Ranks in the guest, each as on a host of its own: source this.
#
#   roce_ranks N LOGS COMMAND...   starts N ranks, even ones on rxe0 and odd ones on rxe1; output in LOGS.R;
#                                  they meet over lo, so that the cable carries RDMA alone; ROCE_TCP=cable: they
#                                  meet, and send what goes over TCP, by the cable too
#   roce_wait SECONDS              waits for them; roce_codes has their exit codes (124: still running, then killed)
roce_pids=() roce_codes=() roce_port=18500

roce_ranks() { # ranks logs command...
  local n=$1 logs=$2 r interface
  shift 2
  roce_pids=()
  roce_port=$((roce_port + 1))
  for ((r = 0; r < n; r++)); do
    interface=lo
    [ "${ROCE_TCP:-lo}" = cable ] && interface=v$((r % 2))
    env RANK=$r WORLD_SIZE="$n" NCCL_HOSTID="host$r" MASTER_ADDR=127.0.0.1 MASTER_PORT=$roce_port NCCL_SOCKET_IFNAME=$interface \
      NCCL_IB_HCA="${ROCE_HCA:-=rxe$((r % 2))}" "$@" >"$logs.$r" 2>&1 &
    roce_pids+=($!)
  done
}

roce_wait() { # seconds
  local pid deadline=$((SECONDS + $1))
  roce_codes=()
  for pid in "${roce_pids[@]}"; do
    while kill -0 "$pid" 2>/dev/null && [ $SECONDS -lt $deadline ]; do sleep 0.05; done
    if kill -0 "$pid" 2>/dev/null; then
      kill -KILL "$pid"
      wait "$pid" 2>/dev/null
      roce_codes+=(124)
    else
      wait "$pid"
      roce_codes+=($?)
    fi
  done
}
