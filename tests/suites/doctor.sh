#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `hocket doctor` on invented machines: a healthy one, and one with everything wrong; then what it tries on this one.
# check: timeout=60
set -u
hocket=$HK_BUILD/bin/hocket
[ -x "$hocket" ] || { echo "SKIP: the command hocket is not built"; exit 77; }
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
checked=0 bad=0
fail() { echo "FAIL: $*"; bad=1; }

put() { mkdir -p "$root/$(dirname "$1")" && printf '%s\n' "$2" >"$root/$1"; } # file text
# pci PATH CLASS VENDOR NUMA SPEED WIDTH MAX-SPEED MAX-WIDTH
pci() {
  local folder=sys/devices/pci${1:0:7}/$1 name=${1##*/}
  put "$folder/class" "$2"
  put "$folder/vendor" "$3"
  put "$folder/device" 0x1234
  put "$folder/numa_node" "$4"
  put "$folder/current_link_speed" "$5 GT/s PCIe"
  put "$folder/current_link_width" "$6"
  put "$folder/max_link_speed" "$7 GT/s PCIe"
  put "$folder/max_link_width" "$8"
  mkdir -p "$root/sys/bus/pci/devices"
  ln -s "../../../devices/pci${1:0:7}/$1" "$root/sys/bus/pci/devices/$name"
}
group() { put "sys/devices/pci${1:0:7}/$1/iommu_group/type" "$2"; }
# Configuration space whose first extended capability is ACS with a control word.
config() { # path control
  { head -c 256 /dev/zero; printf '\x0d\x00\x01\x00\x00\x00'; printf "%b" "$2"; head -c 3832 /dev/zero; } \
    >"$root/sys/devices/pci${1:0:7}/$1/config"
}
rdma() { # path name port-state
  local folder=sys/devices/pci${1:0:7}/$1/infiniband/$2
  put "$folder/node_guid" 0c42:a103:00c4:1d2e
  put "$folder/ports/1/state" "$3"
  put "$folder/ports/1/rate" "200 Gb/sec (4X HDR)"
  put "$folder/ports/1/link_layer" Ethernet
  mkdir -p "$root/sys/class/infiniband"
  ln -s "../../../$folder" "$root/sys/class/infiniband/$2"
}
gid() { # device index gid type
  put "sys/class/infiniband/$1/ports/1/gids/$2" "$3"
  put "sys/class/infiniband/$1/ports/1/gid_attrs/types/$2" "$4"
}
limits() { # files memlock
  put proc/self/limits "Limit                     Soft Limit           Hard Limit           Units
Max open files            $1                 $1                 files
Max locked memory         $2            $2            bytes"
}
# Two sockets; a switch with two GPUs and a NIC.
machine() { # NIC's speed and width, state of its port
  local cpu
  put proc/cpuinfo $'vendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nflags\t\t: fpu'
  put sys/devices/system/cpu/online 0-7
  put sys/devices/system/node/node0/cpulist 0-3
  put sys/devices/system/node/node1/cpulist 4-7
  for cpu in 0 1 2 3 4 5 6 7; do
    put "sys/devices/system/cpu/cpu$cpu/topology/physical_package_id" $((cpu / 4))
    put "sys/devices/system/cpu/cpu$cpu/topology/thread_siblings_list" $cpu
  done
  put proc/driver/nvidia/version 'NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.1'
  pci 0000:15:01.0 0x060400 0x8086 0 32.0 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0 0x060400 0x1000 0 32.0 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0/0000:17:00.0 0x060400 0x1000 0 32.0 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0/0000:17:01.0 0x060400 0x1000 0 32.0 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0/0000:17:02.0 0x060400 0x1000 0 32.0 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0 0x030200 0x10de 0 2.5 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0/0000:17:01.0/0000:19:00.0 0x030200 0x10de 0 32.0 16 32.0 16
  pci 0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0 0x020000 0x15b3 0 "$1" "$2" 32.0 16
  rdma 0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0 mlx5_0 "$3"
}
card=0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0

root=$dir/healthy
machine 32.0 16 "4: ACTIVE"
gid mlx5_0 0 fe80:0000:0000:0000:0e42:a1ff:fec4:1d2e "IB/RoCE v1"
gid mlx5_0 1 fe80:0000:0000:0000:0e42:a1ff:fec4:1d2e "RoCE v2"
gid mlx5_0 3 0000:0000:0000:0000:0000:ffff:0a00:0001 "RoCE v2"
limits 1048576 unlimited
put proc/sys/kernel/yama/ptrace_scope 0
put proc/self/status $'Cpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1'
put proc/self/cgroup 0::/job
put sys/fs/cgroup/job/cpu.max "max 100000"
put sys/fs/cgroup/job/memory.max max
put sys/kernel/mm/transparent_hugepage/enabled "always [madvise] never"
put sys/kernel/mm/transparent_hugepage/shmem_enabled "always within_size [advise] never deny force"
put sys/module/nvidia_peermem/version 1
put sys/devices/system/cpu/cpu0/cpufreq/scaling_governor performance
put dev/kmsg $'6,1,1000,-;Linux version 6.1\n SUBSYSTEM=x'
group $card identity
config 0000:15:01.0/0000:16:00.0/0000:17:00.0 '\x00\x00'

root=$dir/ill
machine 16.0 8 "4: ACTIVE"
gid mlx5_0 0 fe80:0000:0000:0000:0e42:a1ff:fec4:1d2e "IB/RoCE v1"
rdma 0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:1a:00.0 mlx5_1 "1: DOWN"
limits 200 65536
put proc/sys/kernel/yama/ptrace_scope 1
put proc/sys/kernel/numa_balancing 1
put proc/self/status $'Cpus_allowed_list:\t0-3\nMems_allowed_list:\t1'
put proc/self/cgroup 0::/docker/abc/job
put sys/fs/cgroup/docker/cpu.max "150000 100000"
put sys/fs/cgroup/docker/abc/memory.max 536870912
put sys/kernel/mm/transparent_hugepage/enabled "always madvise [never]"
put sys/kernel/mm/transparent_hugepage/shmem_enabled "always within_size advise [never] deny force"
put sys/devices/system/cpu/cpu0/cpufreq/scaling_governor performance
put sys/devices/system/cpu/cpu1/cpufreq/scaling_governor powersave
put dev/kmsg $'4,7,5000000,-;NVRM: Xid (PCI:0000:18:00): 79, pid=1, name=x, GPU has fallen off the bus.
4,8,6000000,-;NVRM: Xid (PCI:0000:18:00): 79, pid=2, name=y, GPU has fallen off the bus.
4,9,7000000,-;NVRM: Xid (PCI:0000:19:00): 31, pid=3, name=python, MMU Fault
4,10,8000000,-;nvidia-nvswitch3: SXid (PCI:0000:c3:00.0): 22013, Non-fatal, Link 24'
group $card DMA-FQ
config 0000:15:01.0/0000:16:00.0/0000:17:00.0 '\x1d\x00'

# expect STATE CHECK TEXT: such a finding is in $out.
expect() {
  checked=$((checked + 1))
  awk -v state="$1" -v check="$2" -v text="$3" '
    BEGIN { RS = "\\{\"check\":" }
    index($0, "\"" check "\",\"state\":\"" state "\"") == 1 && index($0, text) { found = 1 }
    END { exit !found }' "$out" || { fail "no $1 of $2 with '$3'"; tr '{' '\n' <"$out" | grep "\"$2\""; }
}
doctor() { # exit code, arguments...
  local want=$1
  shift
  checked=$((checked + 1))
  "$hocket" doctor "$@" >"$dir/out" 2>"$dir/err"
  local rc=$?
  [ $rc = "$want" ] || { fail "hocket doctor $*: exit code $rc, not $want"; cat "$dir/out" "$dir/err"; }
}
out=$dir/out

doctor 0 --root "$dir/healthy" --json
expect ok gids "uses GID 3 (RoCE v2, IPv4)"
expect ok memlock "without limit"
expect ok files 1048576
expect ok cma "read each other's memory"
expect ok hugepages "ordinary memory"
expect ok hugepages "ncclMemAlloc's memory"
expect ok limits "no quota"
expect ok numa "bound to 4 of 8 processors, on 1 of 2"
expect ok governor "full speed"
expect ok links "PCI links run at full speed"
expect ok gpu "2 GPUs; driver: NVRM"
expect ok gdr nvidia-peermem
expect ok xid "no error of a GPU"
expect ok acs "directly (1 with ACS off)"
expect ok iommu "untranslated"

# The same, bound to the socket that has neither GPUs nor a NIC.
sed -i 's/0-3/4-7/' "$dir/healthy/proc/self/status"
doctor 1 --root "$dir/healthy" --json numa
expect problem numa "on NUMA node 1, and every GPU that it sees is on another (node 0)"
expect problem numa "every network port that it sees is on another (node 0)"
expect problem numa "numactl --cpunodebind=0 --membind=0"

doctor 1 --root "$dir/ill" --json
expect problem gids "mlx5_0:1 has no GID of RoCE v2"
expect note gids "mlx5_1:1 is down"
expect problem memlock "64 KiB"
expect problem files "only 200"
expect note cma "ptrace_scope is 1"
expect note cma "HOCKET_PTRACER=1"
expect note hugepages "switched off"
expect note hugepages "shmem_enabled is never"
expect problem limits "quota of 1.5 CPUs on 4 processors"
expect note limits "512 MiB"
expect problem numa "memory from other nodes only"
expect note numa "moves memory between NUMA nodes, and every move"
expect note governor "1 of 2 processors use the governor 'powersave'"
expect problem links "0000:1a:00.0: its link runs at 16 GT/s x8 and could run at 32 GT/s x16"
expect problem gdr "nvidia-peermem is not loaded"
expect problem xid "GPU 0000:18:00: Xid 79, 2 times"
expect note xid "GPU 0000:19:00: Xid 31, 1 time"
expect problem xid "NVSwitch 0000:c3:00.0: SXid 22013"
expect problem acs "1 PCI bridge (0000:17:00.0) sends"
expect problem iommu "translates the addresses of 1 device (0000:1a:00.0)"
expect note topology NVLinks

doctor 1 --root "$dir/ill" cma numa
grep -q "sysctl -w kernel.yama.ptrace_scope=0" "$out" || fail "no command that fixes it"
grep -q "numactl --cpunodebind=0 --membind=0" "$out" || fail "no command that fixes NUMA"
grep -q memlock "$out" && fail "a check that was not chosen"
doctor 2 --root "$dir/none"
doctor 2 nosuchcheck

# RDMA ports of this machine: what the variables want, as the library chooses.
root=$dir/healthy
put sys/class/infiniband/siw0/node_type "4: RNIC"
put sys/class/infiniband/siw0/ports/1/state "4: ACTIVE"
gid mlx5_0 5 fd00:0000:0000:0000:0000:0000:0a00:0001 "RoCE v2"
gids() { # exit code, finding, variables...
  checked=$((checked + 1))
  env HOCKET_IB_ROOT="$root" "${@:3}" "$hocket" doctor gids --json >"$out" 2>"$dir/err"
  local rc=$?
  [ $rc = "$1" ] && grep -qF "$2" "$out" || { fail "${*:3}: exit code $rc, not $1 with '$2'"; cat "$out" "$dir/err"; }
}
gids 0 "mlx5_0:1 uses GID 3 (RoCE v2, IPv4)" NCCL_IB_ADDR_FAMILY=AF_INET
gids 0 "siw0:1 is not used: siw0 is an iWARP device"
gids 0 "mlx5_0:1 uses GID 5 (RoCE v2, IPv6), as" NCCL_IB_ADDR_FAMILY=AF_INET6
gids 0 "mlx5_0:1 uses GID 5 (RoCE v2, IPv6), as" NCCL_IB_ADDR_RANGE=fd00::/8
gids 0 "mlx5_0:1 uses GID 0 (RoCE v1, link-local IPv6), as" NCCL_IB_ROCE_VERSION_NUM=1
gids 1 "leave no GID of mlx5_0:1; without them it is 3" NCCL_IB_ADDR_RANGE=10.9.0.0/16
gids 1 "leave no GID of mlx5_0:1" NCCL_IB_GID_INDEX=9
gids 1 "NCCL_IB_GID_INDEX=0 is RoCE v1, link-local IPv6 on mlx5_0:1; index 3 is better" NCCL_IB_GID_INDEX=0
gids 1 "AF_INET or AF_INET6" NCCL_IB_ADDR_FAMILY=IPX NCCL_DEBUG=NONE

# This machine: whatever it is like, the doctor ends, and tries interfaces and shared memory.
"$hocket" doctor --json >"$out" 2>"$dir/err"
[ $? -le 1 ] || fail "doctor on this machine: $(cat "$dir/err")"
grep -q '"check":"interfaces"' "$out" || fail "no interface was tried"
grep -q '"check":"shm"' "$out" || fail "shared memory was not tried"
NCCL_ALGOO=ring doctor 1 variables
grep -q "did you mean NCCL_ALGO?" "$out" || fail "a misspelt variable is not reported"
NCCL_TUNER_PLUGIN=nosuchthing doctor 1 plugins
grep -q "NCCL_TUNER_PLUGIN=nosuchthing cannot be loaded" "$out" || fail "a missing plugin is not reported"
HOCKET_TUNING_FILE=$dir/nosuchfile doctor 1 plugins
grep -q "HOCKET_TUNING_FILE=$dir/nosuchfile cannot be read" "$out" || fail "a missing file is not reported"
echo '<system version="1"><cpu></system>' >"$dir/bad.xml"
NCCL_TOPO_FILE=$dir/bad.xml doctor 1 plugins
grep -q "hocket topo --lint" "$out" || fail "a broken topology file is not reported"
NCCL_SOCKET_IFNAME="=nosuch0" doctor 1 interfaces
grep -q "no network interface is left" "$out" || fail "a filter that leaves nothing is not reported"

# GPUs, of the emulated driver: kernels that load or do not, the switch, too few queues, no NVML.
emulator=$(realpath "$HK_BUILD/cudaemu")
gpus() { # exit code, variables...
  checked=$((checked + 1))
  env -u HOCKET_DEVICE LD_LIBRARY_PATH="$emulator" CUDAEMU_DEVICES=4 HOCKET_CUDA_IMAGE="$emulator/kernels.so" "${@:2}" \
    "$hocket" doctor kernels nvls --json >"$out" 2>"$dir/err"
  local rc=$?
  [ $rc = "$1" ] || { fail "doctor kernels nvls, ${*:2}: exit code $rc, not $1"; cat "$out" "$dir/err"; }
}
if [ -e "$emulator/kernels.so" ]; then
  gpus 0 CUDAEMU_MULTICAST=1 CUDA_DEVICE_MAX_CONNECTIONS=1
  expect ok kernels "the kernels run on 4 of 4 GPUs"
  expect ok nvls "a multicast object over all 4 GPUs"
  expect note kernels "CUDA_DEVICE_MAX_CONNECTIONS=1: enough for one rank in each process"
  expect note kernels "no libnvidia-ml.so.1"
  gpus 1 CUDAEMU_MULTICAST=1 CUDAEMU_FAIL_MULTICAST=3
  expect problem nvls "device 2: binding"
  expect problem nvls "NCCL_NVLS_ENABLE=0 goes without"
  gpus 1 HOCKET_CUDA_IMAGE=/dev/null
  expect problem kernels "GPU 3 does not run the kernels"
  gpus 0 LD_LIBRARY_PATH="$emulator:$(realpath "$HK_BUILD/fakes")"
  grep -q libnvidia-ml "$out" && fail "an NVML that is there is missed"
else
  echo "SKIP: the emulated CUDA driver and its kernels are not built (g++)"
fi

# Frameworks, in invented Python environments on PATH: `python3` there prints its prefix and its one folder of modules.
lib=$(realpath "$HK_BUILD/lib/libnccl.so.2")
environment() { # name
  mkdir -p "$dir/$1/bin" "$dir/$1/site"
  printf '#!/bin/sh\necho "%s"\necho\necho "%s"\n' "$dir/$1" "$dir/$1/site" >"$dir/$1/bin/python3"
  chmod +x "$dir/$1/bin/python3"
}
package() { # environment package file text
  mkdir -p "$dir/$1/site/$2" && mkdir -p "$(dirname "$dir/$1/site/$2/$3")" && echo "$4" >"$dir/$1/site/$2/$3"
}
frameworks() { # variables...
  env "$@" "$hocket" doctor frameworks --json >"$out" || fail "doctor frameworks returns $?"
}
environment wheels
package wheels torch-2.15.0+cu132.dist-info METADATA 'Requires-Dist: nvidia-nccl-cu13==2.30.7; platform_system == "Linux"'
package wheels cupy_cuda13x-14.1.0.dist-info ../cupy/.data/_wheel.json '{"cuda": "13.x", "nccl": {"version": "2.27.7"}}'
package wheels jax_cuda13_plugin-0.10.2.dist-info METADATA 'Requires-Dist: nvidia-nccl-cu13>=2.27.7; extra == "with-cuda"'
package wheels vllm-0.20.0.dist-info METADATA 'Requires-Dist: torch==2.15.0'
package wheels nvidia/nccl/lib libnccl.so.2 "not a library"
environment late
package late torch-9.0.dist-info METADATA 'Requires-Dist: nvidia-nccl-cu14==2.99.1'
frameworks PATH="$dir/wheels/bin:$dir/wheels/bin:$PATH" LD_PRELOAD=
wheel=$dir/wheels/site/nvidia/nccl/lib/libnccl.so.2
expect note frameworks "PyTorch 2.15.0+cu132 of $dir/wheels is built for NCCL 2.30.7 and would use $wheel, not Hocket"
expect note frameworks "CuPy 14.1.0 of $dir/wheels is built for NCCL 2.27.7 and would use $wheel"
expect note frameworks "JAX's CUDA plugin 0.10.2 of $dir/wheels is built for NCCL 2.27.7 and would use $wheel"
expect note frameworks "vLLM 0.20.0 of $dir/wheels is built with the NCCL of its PyTorch"
grep -q "\"fix\":\"export LD_PRELOAD=$lib\"" "$out" || fail "no line says how to preload"
grep -q "\"fix\":\"cp -b $lib $wheel\"" "$out" || fail "no line says how to replace the wheel's file"
[ "$(grep -o 'PyTorch 2.15' "$out" | wc -l)" = 1 ] || fail "an environment that is twice on PATH is shown twice"
frameworks PATH="$dir/wheels/bin:$dir/late/bin:$PATH" LD_PRELOAD="$lib"
expect ok frameworks "PyTorch 2.15.0+cu132 of $dir/wheels is built for NCCL 2.30.7 and would use Hocket: LD_PRELOAD"
expect note frameworks "JAX's CUDA plugin 0.10.2"
expect note frameworks "PyTorch 9.0 of $dir/late is built for NCCL 2.99.1, newer than"
frameworks PATH="$dir/wheels/bin:$PATH" VLLM_NCCL_SO_PATH="$lib"
expect ok frameworks "vLLM 0.20.0 of $dir/wheels is built with the NCCL of its PyTorch and would use Hocket: VLLM_NCCL_SO_PATH"
cp "$lib" "$wheel"
frameworks PATH="$dir/wheels/bin:$PATH"
expect ok frameworks "JAX's CUDA plugin 0.10.2 of $dir/wheels is built for NCCL 2.27.7 and would use Hocket: it is in place"
frameworks PATH=/nonexistent
expect ok frameworks "no PyTorch, CuPy, JAX for CUDA or vLLM in 0 Python environments of PATH"

# Two doctors talk, of interfaces and of RDMA ports, with a librdmacm that says yes.
HOCKET_IB_ROOT=$root "$hocket" doctor --listen 0 >"$dir/listen" &
listener=$!
for _ in $(seq 50); do grep -q port "$dir/listen" && break; sleep 0.1; done
port=$(sed -n 's/^listening on port \([0-9]*\);.*/\1/p' "$dir/listen")
peers() { # variables...
  env LD_LIBRARY_PATH="$HK_BUILD/fakes" HOCKET_IB_ROOT="$root" "$@" "$hocket" doctor peer --peer "127.0.0.1:$port" --json >"$out"
}
if peers NCCL_IB_ADDR_FAMILY=AF_INET; then
  grep -q "here reaches" "$out" || echo "SKIP: no interface but loopback is up"
else
  fail "a doctor on this host is not reached: $(cat "$out")"
fi
expect ok peer "mlx5_0:1 GID 3 (::ffff:10.0.0.1) here, mlx5_0:1 GID 3 (::ffff:10.0.0.1) there: RoCE v2, IPv4"
expect ok peer "; cm0:1 resolves 10.0.0.1"
peers NCCL_IB_ADDR_RANGE=fe80::/16
expect note peer "RoCE v2, link-local IPv6, one network; rdma_cm resolves no link-local addresses"
peers NCCL_IB_DISABLE=1
expect problem peer "no RDMA between the two: this host has no port that is used"
kill $listener
wait $listener 2>/dev/null
doctor 1 peer --peer "127.0.0.1:$port"
grep -q "hocket doctor --listen $port" "$out" || fail "the way to listen is not shown"

[ $bad = 0 ] && echo "$checked things looked at"
exit $bad
