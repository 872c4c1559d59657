#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# devices.sh [short]: in the guest: memory and devices that soft-RoCE is not made for.  Dma-bufs, which it refuses, and (emulated)
# GPUs' memory, which then goes another way; an iWARP device; and what rdma_cm says of the ways between both devices.
set -u
. tests/roce/ranks.sh
logs=$(mktemp -d)
ran=0
fail() {
  echo "$*"
  tail -n 15 "$logs"/*
  exit 1
}
# Ranks that end well, with right results.
right() { # what
  local code
  roce_wait 200
  for code in "${roce_codes[@]}"; do [ "$code" = 0 ] || fail "$1: ended with codes ${roce_codes[*]}"; done
  grep -q 'Out of bounds values : 0 OK' "$logs/run.0" || fail "$1: wrong results"
  ran=$((ran + 1))
}
says() { grep -qF -- "$2" "$logs/run.0" || fail "$1: no line says '$2'"; }

# A true dma-buf and a real device.
for module in udmabuf vgem; do modprobe -q $module; done
for device in rxe0 rxe1; do
  "$HK_BUILD/roce/dmabuf" $device >"$logs/run.0"
  case $? in
    0) cat "$logs/run.0" && ran=$((ran + 1)) ;;
    77) cat "$logs/run.0" ;;
    *) fail "a dma-buf and $device" ;;
  esac
done

if [ "${1:-}" = short ]; then
  rm -rf "$logs"
  echo "$ran dma-bufs were refused or taken as they should be"
  exit 0
fi
# GPUs whose driver gives dma-bufs: refused, their memory is registered as a peer memory module lets, or passes host memory.
emulator=$PWD/$HK_BUILD/cudaemu refusal="dma-buf: the card's driver refuses it (it knows no dma-buf)"
gpus() { # settings and a command...
  rm -f "$logs"/*
  roce_ranks 2 "$logs/run" env LD_LIBRARY_PATH="$emulator" HOCKET_CUDA_IMAGE="$emulator/kernels.so" CUDAEMU_DEVICES=1 \
    CUDAEMU_MEMORY_MB=128 CUDAEMU_DMABUF=1 NCCL_NET=IB NCCL_NET_GDR_LEVEL=SYS NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET "$@"
}
few=(-b 256 -e 16K -f 64 -n 1 -w 0 -c 1)
if [ -e "$emulator/kernels.so" ]; then
  gpus CUDAEMU_STRICT=1 "$HK_BUILD/bin/all_reduce_perf" "${few[@]}"
  right "GPU memory that cannot be registered"
  says "GPU memory that cannot be registered" "data passes through host memory; $refusal; nvidia-peermem: it is not loaded"
  for program in all_reduce sendrecv; do
    gpus "$HK_BUILD/bin/${program}_perf" "${few[@]}"
    right "$program on GPU memory"
    says "$program on GPU memory" "GPUDirect RDMA by nvidia-peermem; $refusal"
  done
  gpus CUDAEMU_RDMA_ORDER=0 CUDAEMU_RDMA_FLUSH=0 "$HK_BUILD/bin/all_reduce_perf" "${few[@]}"
  right "GPU memory that needs flushes"
  says "GPU memory that needs flushes" "is flushed by reads of the card"
else
  echo "SKIP: no emulated GPU (g++)"
fi

# An iWARP device is reported and left aside.  A kernel without siw (Debian's) gets one by name: a soft-RoCE device that says so.
if modprobe -q siw && rdma link add siw0 type siw netdev lo; then
  iwarp=siw0
else
  echo "SKIP: this kernel has no iWARP in software (siw); a soft-RoCE device says that it is iWARP"
  iwarp=rxe1
  echo "4: RNIC" >/run/node_type
  mount --bind /run/node_type /sys/class/infiniband/rxe1/node_type
fi
rm -f "$logs"/*
ROCE_HCA="=$iwarp" roce_ranks 2 "$logs/run" env NCCL_DEBUG=INFO "$HK_BUILD/bin/all_reduce_perf" "${few[@]}"
right "an iWARP device"
says "an iWARP device" "$iwarp is an iWARP device"
says "an iWARP device" "network IB is off"
ROCE_HCA="=$iwarp" roce_ranks 2 "$logs/run" env NCCL_NET=IB "$HK_BUILD/bin/all_reduce_perf" "${few[@]}"
roce_wait 60
for code in "${roce_codes[@]}"; do case $code in 0 | 124) fail "iWARP insisted on: codes ${roce_codes[*]}" ;; esac; done
says "iWARP insisted on" "iWARP"
"$HK_BUILD/bin/hocket" doctor gids verbs --json >"$logs/run.0"
says "doctor" "$iwarp:1 is not used: $iwarp is an iWARP device"
[ $iwarp = siw0 ] || umount /sys/class/infiniband/rxe1/node_type
ran=$((ran + 2))

# What the kernel says of the ways, through librdmacm.
NCCL_IB_HCA="=rxe1" "$HK_BUILD/bin/hocket" doctor --listen 7461 >"$logs/listener" &
listener=$!
until grep -q listening "$logs/listener"; do sleep 0.1; kill -0 $listener || fail "no doctor listens"; done
peer() { NCCL_IB_HCA="=rxe0" "$HK_BUILD/bin/hocket" doctor peer --peer 127.0.0.1:7461 --json >"$logs/run.0"; }
peer
says "two doctors" "rxe0:1 GID 1 (::ffff:10.0.0.1) here, rxe1:1 GID 1 (::ffff:10.0.0.2) there: RoCE v2, IPv4"
if grep -q librdmacm "$logs/run.0"; then
  echo "SKIP: no librdmacm"
else
  says "two doctors" "rxe0:1 resolves 10.0.0.2"
  wire loss 100%
  ip neigh del 10.0.0.2 dev v0
  peer
  says "two doctors, the cable cut" "10.0.0.2 does not answer to neighbour discovery from 10.0.0.1"
  wire ok
  wire up
  peer
  says "two doctors, the cable repaired" "rxe0:1 resolves 10.0.0.2"
  ran=$((ran + 3))
fi
kill $listener
rm -rf "$logs"
echo "$ran things of GPUs, iWARP and routes are as they should be"
