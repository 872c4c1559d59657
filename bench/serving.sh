#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# serving.sh [hosts [ranks a host [Mbit/s [ms]]]]: tokens a second of vLLM on CPUs over several hosts, which are network namespaces with a
# /dev/shm of their own: Hocket and Gloo in turns.  On one host: Hocket and vLLM's own shared memory.  Needs root, and vLLM as
# `make check-frameworks ONLY=vllm-serves` installs it, or PYTHON with it.  With a rate and a delay the cables are limited, if the kernel can do that.  With VLLM_SERVES_SILENT=1 Hocket's allreduces do
# nothing, and the tokens must be others.
set -eu
cd "$(dirname "$0")/.."
HK_BUILD=${HK_BUILD:-build/gcc}
hosts=${1:-2} each=${2:-1} rate=${3:-} delay=${4:-0}
python=${PYTHON:-build/frameworks/serving/bin/python}
"$python" -c 'import vllm' 2>/dev/null || { echo "SKIP: $python has no vLLM: make check-frameworks ONLY=vllm-serves installs it"; exit 0; }
. tests/netns/lib.sh
netns_need
netns_hosts "$hosts"
for ((i = 1; i <= hosts && ${rate:-0}; i++)); do
  limit=(tbf rate "${rate}mbit" burst 256kb latency 50ms)
  [ "$delay" = 0 ] || limit=(netem rate "${rate}mbit" delay "${delay}ms")
  netns_run "$i" tc qdisc add dev eth0 root "${limit[@]}" || { echo "SKIP: this kernel has no ${limit[0]}, which limits a cable"; exit 0; }
done
out=$(mktemp -d)
"$python" -Bc 'import sys; sys.path.insert(0, "tests/frameworks"); import vllm_serves; vllm_serves.plug(sys.argv[1])' "$out"
"$python" -B bench/serving.py --save "$out/model"
MASTER_ADDR=$(netns_ip 1)
export PYTHONPATH=$out:$PWD/tests/frameworks:$PWD/$HK_BUILD/python PYTHONDONTWRITEBYTECODE=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_LOGGING_LEVEL=ERROR HF_HUB_OFFLINE=1 \
  VLLM_NO_USAGE_STATS=1 OMP_NUM_THREADS=1 WORLD_SIZE=$((hosts * each)) MASTER_ADDR NCCL_SOCKET_IFNAME=eth0 GLOO_SOCKET_IFNAME=eth0

peer=gloo apart=(unshare --mount --ipc bash -c 'mount -t tmpfs tmpfs /dev/shm && exec "$@"' bash)
[ "$hosts" != 1 ] || peer=memory apart=()

cores() { # host: a core for each of its ranks
  local l list=()
  for ((l = 0; l < each; l++)); do list+=($((($1 * each + l) % $(nproc)))); done
  (IFS='|' && echo "${list[*]}")
}

once() { # name HOCKET_VLLM
  local r pids=() job=$((RANDOM % 1000 + 29000))
  for ((r = 0; r < hosts * each; r++)); do
    netns_run $((r / each + 1)) env RANK=$r LOCAL_RANK=$((r % each)) MASTER_PORT=$job HOCKET_VLLM="$2" NCCL_HOSTID="host$((r / each))" \
      VLLM_CPU_OMP_THREADS_BIND="$(cores $((r / each)))" VLLM_HOST_IP="$(netns_ip $((r / each + 1)))" \
      "${apart[@]}" "$python" -B bench/serving.py 2 "$out/model" $peer >"$out/$1.$r" 2>&1 &
    pids+=($!)
  done
  for r in "${pids[@]}"; do wait "$r" || { echo "$1 failed:"; for f in "$out/$1".*; do tail -n 20 "$f"; done; exit 1; }; done
  sed -n "s/^RESULT/$1/p; s/^TOKENS/TOKENS $1/p" "$out/$1.0" | tee -a "$out/all"
}
for _ in 1 2; do
  once $peer 0
  once hocket 1
done
"$python" -B bench/serving.py --summary $peer <"$out/all"
rm -rf "$out"
