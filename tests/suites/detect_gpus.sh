#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Invented drivers under the programs that users run: `hocket topo`, `plan` and `doctor`, and a topology dump at init, see
# GPUs that the fake libcuda.so.1 and libnvidia-ml.so.1 show.
# check: timeout=60
set -u
unset HOCKET_DEVICE
hocket=$HK_BUILD/bin/hocket
if [ ! -x "$hocket" ] || [ ! -e "$HK_BUILD/fakes/libcuda.so.1" ]; then
  echo "SKIP: hocket or the fake drivers are not built"
  exit 77
fi
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
LD_LIBRARY_PATH=$(cd "$HK_BUILD/fakes" && pwd)
export LD_LIBRARY_PATH NO_COLOR=1
checked=0 bad=0
# says FILE TEXT: a line of the file, blanks squeezed, has the text.
says() {
  checked=$((checked + 1))
  tr -s ' ' <"$dir/$1" | grep -qF -- "$2" || { echo "FAIL: no '$2' in $1:"; cat "$dir/$1"; bad=1; }
}

# Four GPUs on an NVSwitch that PCI does not show, as in a virtual machine.
export HOCKET_TEST_GPUS=4:90:18:hidden
"$hocket" topo >"$dir/topo" || bad=1
says topo "4 GPUs, NVSwitch"
says topo "GPU2 NV18 NV18 X NV18"
says topo "4 GPUs are shown by the driver but not by sysfs"
"$hocket" plan allreduce 64M >"$dir/plan" || bad=1
says plan "4 ranks on 1 host"
"$hocket" doctor gpu >"$dir/doctor" || bad=1
says doctor "4 GPUs; driver:"
NCCL_TOPO_DUMP_FILE=$dir/dump.xml "$HK_BUILD/bin/all_reduce_perf" -t 2 -b 64 -e 64 -n 1 -w 0 >"$dir/perf" || bad=1
says dump.xml 'busid="00ff:02:00.0"'
says dump.xml 'sm="90"'
says dump.xml '<nvlink target="'
# The dump is read elsewhere, where there are no drivers.
LD_LIBRARY_PATH='' "$hocket" topo --file "$dir/dump.xml" >"$dir/again" || bad=1
says again "GPU2 NV18 NV18 X NV18"

# No driver answers; no NVLinks.
HOCKET_TEST_GPUS=2:86:0:none "$hocket" topo >"$dir/pcie" || bad=1
says pcie "GPU0 X PHB"
HOCKET_TEST_GPUS=0:0:0:none "$hocket" topo >"$dir/none" || bad=1
grep -q GPU0 "$dir/none" && { echo "FAIL: GPUs out of nothing"; bad=1; }

# GPUs and RDMA cards in pairs: the emulated CUDA driver and the fake verbs.
card() { # name, below $dir
  mkdir -p "$dir/sys/class/infiniband/$1/ports/1/"{gids,gid_attrs/types}
  echo "4: ACTIVE" >"$dir/sys/class/infiniband/$1/ports/1/state"
  echo Ethernet >"$dir/sys/class/infiniband/$1/ports/1/link_layer"
  echo 0000:0000:0000:0000:0000:ffff:0a00:0001 >"$dir/sys/class/infiniband/$1/ports/1/gids/0"
  echo "RoCE v2" >"$dir/sys/class/infiniband/$1/ports/1/gid_attrs/types/0"
}
card fake0 && card fake1
export LD_LIBRARY_PATH=$PWD/$HK_BUILD/cudaemu:$LD_LIBRARY_PATH
export CUDAEMU_DEVICES=2 HOCKET_TEST_VERBS=fake0,fake1 HOCKET_IB_ROOT=$dir
CUDAEMU_DMABUF=1 "$hocket" doctor pairs >"$dir/pairs" || bad=1
says pairs "GPU 1: fake0 by dma-buf, fake1 by dma-buf; it needs no flush"
CUDAEMU_DMABUF=1 NCCL_NET_GDR_LEVEL=LOC "$hocket" doctor pairs >"$dir/never"
says never "GPU 0: fake0 by host memory (NCCL_NET_GDR_LEVEL is LOC), fake1"
NCCL_DMABUF_ENABLE=0 HOCKET_TEST_LOCKABLE=1 "$hocket" doctor pairs >"$dir/refused"
says refused "GPU 0: fake0 by host memory, fake1 by host memory (dma-buf: NCCL_DMABUF_ENABLE=0;"
says refused "nvidia-peermem: Cannot allocate memory)"

# The library's kernels, on GPUs that run them and on one that does not.
if [ -e "$HK_BUILD/cudaemu/kernels.so" ]; then
  HOCKET_CUDA_IMAGE=$HK_BUILD/cudaemu/kernels.so "$hocket" doctor kernels >"$dir/run" || bad=1
  says run "the kernels run on 2 of 2 GPUs"
  CUDAEMU_FAIL_LAUNCH=4 HOCKET_CUDA_IMAGE=$HK_BUILD/cudaemu/kernels.so "$hocket" doctor kernels >"$dir/one" && bad=1
  says one "GPU 1 does not run the kernels: device 1: launching 1 blocks"
  says one "the kernels run on 1 of 2 GPUs"
fi

[ $bad = 0 ] && echo "$checked things looked at"
exit $bad
