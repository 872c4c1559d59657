#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=120 covers=src/comm/diagnose
# Diagnostics at init (NCCL_RUN_RAS_DIAGNOSTICS, NCCL_RUN_DIAGNOSTICS): processes with different variables, invented hosts, emulated
# GPUs with an NVML that shows memory errors.
set -u
unset HOCKET_DEVICE
. tests/support/suite.sh
bin=$PWD/$HK_BUILD/bin port=$((20000 + $$ % 9000))
line() { echo "^[^ ]+:[0-9]+ NCCL DIAG $1"; }

# together RANKS VARIABLES...: as many processes; @R in a variable's value is the rank's number.
together() {
  local ranks=$1 r
  shift
  port=$((port + 1))
  for ((r = 0; r < ranks; r++)); do
    env HOCKET_DEVICE=host RANK=$r WORLD_SIZE="$ranks" LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$port NCCL_DEBUG=WARN "${@//@R/$r}" \
      timeout 60 "$bin/all_reduce_perf" -b 8 -e 8 -n 1 -w 1 >"$tmp/out.$r" 2>&1 &
  done
  wait
  cat "$tmp"/out.* >"$tmp/out"
  rm "$tmp"/out.*
}

together 3 NCCL_RUN_RAS_DIAGNOSTICS=1 NCCL_IB_HCA=same
has "$(line '=== RAS Diagnostics ===$')" equal
has "$(line '\[OK\]   NCCL environment: .* consistent across 3 ranks in comm 0x[0-9a-f]+$')" equal
has "$(line 'RAS diagnostics completed in [0-9.]+ ms across 3 ranks$')" equal
hasnt "INFO\]|NCCL Diagnostics|GPU inventory" equal
[ "$(grep -c '=== RAS' "$tmp/out")" = 1 ] || fault "not one report for each communicator"

together 3 NCCL_RUN_RAS_DIAGNOSTICS=1 NCCL_IB_HCA=mlx@R NCCL_PROFILE_X=@R HOCKET_MINE=@R
has "$(line '\[INFO\] NCCL environment: NCCL_IB_HCA=mlx1 on rank\(s\) \{1\} in comm')" different
has "$(line '\[INFO\] NCCL environment: 2 NCCL_\* or HOCKET_\* variable\(s\) differ across 3 ranks')" different
hasnt "HOCKET_MINE" "a variable of the user"
together 3 NCCL_RUN_RAS_DIAGNOSTICS=@R NCCL_DEBUG=NONE # rank 0's counts
hasnt "NCCL DIAG" "not rank 0's"

together 2 NCCL_RUN_DIAGNOSTICS=1
has "$(line '\[OK\]   p2p: .*\(2 peer accesses\) in comm')" "one host"
has "$(line 'NCCL diagnostics completed in')" "one host"
hasnt "net bw" "one host"
together 3 NCCL_RUN_DIAGNOSTICS=1 NCCL_HOSTID=host@R NCCL_DIAGNOSTICS_IB_BW_TIMEOUT=1
has "$(line '\[(OK|INFO)\] +net bw: [0-9.]+/[0-9.]+/[0-9.]+ Gbit/s min/median/max .*\(across 2 ranks\)')" "three hosts"
hasnt "p2p" "three hosts"

# A network that changes a byte of each long message.
cat >"$tmp/wrong.c" <<'EOF'
#include <dlfcn.h>
#include <sys/socket.h>
ssize_t sendmsg(int fd, const struct msghdr *m, int flags) {
  static ssize_t (*real)(int, const struct msghdr *, int);
  if (!real) real = (ssize_t(*)(int, const struct msghdr *, int))dlsym(RTLD_NEXT, "sendmsg");
  const struct iovec *last = &m->msg_iov[m->msg_iovlen - 1];
  char *byte = last->iov_len >= 10000 ? (char *)last->iov_base + 5000 : 0;
  if (byte) *byte ^= 1;
  ssize_t n = real(fd, m, flags);
  if (byte) *byte ^= 1;
  return n;
}
EOF
if cc -shared -fPIC -D_GNU_SOURCE -o "$tmp/wrong.so" "$tmp/wrong.c" -ldl 2>/dev/null && [[ $HK_BUILD != *address* && $HK_BUILD != *thread* ]]; then
  together 2 NCCL_RUN_DIAGNOSTICS=1 NCCL_SHM_DISABLE=1 LD_PRELOAD="$tmp/wrong.so"
  has "$(line '\[INFO\] p2p: only 0/2 peer accesses passed verification in comm')" "changed data"
  has "$(line '\[INFO\] p2p: data from rank 1 \(device -1\) to rank 0 \(device -1\) is changed from byte [0-9]+ on')" "changed data"
else
  echo "SKIP: changed data: a library cannot be preloaded here"
fi

# ---- GPUs ----

emulator=$PWD/$HK_BUILD/cudaemu
if [ -e "$emulator/kernels.so" ]; then
  mkdir "$tmp/nvml"
  cp "$HK_BUILD/fakes/libnvidia-ml.so.1" "$tmp/nvml"
  gpus() { # variables...: two ranks on two GPUs
    gives 0 env LD_LIBRARY_PATH="$tmp/nvml:$emulator" HOCKET_CUDA_IMAGE="$emulator/kernels.so" CUDAEMU_DEVICES=2 CUDAEMU_MEMORY_MB=256 NCCL_DEBUG=WARN \
      HOCKET_TEST_GPUS=2:90:4:switch NCCL_RUN_RAS_DIAGNOSTICS=1 NCCL_RUN_DIAGNOSTICS=1 "$@" "$bin/all_reduce_perf" -t 2 -b 8 -e 8 -n 1 -w 1
  }
  gpus HOCKET_TEST_ECC=0:0
  has "$(line '\[OK\]   GPU inventory: 2x Emulated GPU')" GPUs
  has "$(line '\[OK\]   NVIDIA graphics driver version: 580')" GPUs
  has "$(line '\[OK\]   ECC: no uncorrected volatile errors across 2 of 2 ranks')" GPUs
  has "$(line '\[(OK|INFO)\] +Xid/SXid: ')" GPUs
  has "$(line '\[INFO\] NVLink: 4 link\(s\) per device, 3 active on rank\(s\) \{1\}')" GPUs
  has "$(line '\[INFO\] NVLink: inactive link\(s\) on rank\(s\) \{1\}')" GPUs
  has "$(line '\[OK\]   p2p: .*\(2 peer accesses\) in comm')" GPUs
  gpus HOCKET_TEST_ECC=7:3 NCCL_DIAGNOSTICS_ECC_THRESHOLD=7
  has "$(line '\[INFO\] ECC: uncorrected volatile errors on rank\(s\) \{1\} \(worst=3\)')" "memory errors"
  has "$(line '\[INFO\] ECC: corrected volatile errors at or above threshold 7 on rank\(s\) \{1\} \(worst=7\)')" "memory errors"
else
  echo "SKIP: the emulated CUDA driver and its kernels are not built (g++)"
fi
finish "reports of settings, links, hosts and GPUs"
