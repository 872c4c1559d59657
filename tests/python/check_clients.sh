#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Libraries that train with PyTorch on CPUs and know Gloo alone, unmodified, with HOCKET_TORCH_AS_GLOO=1: the losses are Gloo's.
# The time of a step is printed with Gloo's. torchft, which makes its own groups, goes on after a rank has died.
# Their wheels come from the package index and stay in build/frameworks/clients; PyTorch's is that of `make check-torch`.
# DeepSpeed compiles an operation of its own at its first use, which takes minutes.
# Environment: HK_BUILD, ONLY=pattern of names.
set -u
HK_BUILD=${HK_BUILD:-build/gcc}
torch=$PWD/build/frameworks/torch env=$PWD/build/frameworks/clients here=tests/python
packages=("accelerate==1.15.*" "transformers==5.24.*" "pytorch-lightning==2.6.*" "torchft==0.2.*" "ray[train]==2.60.*" "deepspeed==0.19.*")
passed=0 failed=0 skipped=0
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=$PWD/build/frameworks/cache PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1
line() { printf '%s  %-16s %s\n' "$1" "$2" "$3"; }
[ -e "$HK_BUILD/python/hocket/lib/libhocket.so" ] || { echo "SKIP: the Python package is not built: make python"; exit 77; }
[ -d "$torch/lib" ] || { echo "SKIP: PyTorch is not in build/frameworks: make check-torch installs it (6 GB)"; exit 77; }
stamp=$env/$(tr -c '[:alnum:].\n' '-' <<<"${packages[*]}").installed
if [ ! -e "$stamp" ]; then
  python3 -m venv "$env" || { echo "SKIP: python3 -m venv fails"; exit 77; }
  for site in "$env"/lib/python3*/site-packages; do
    echo "$torch/lib/${site#"$env/lib/"}" >"$site/torch-of-check-torch.pth"
  done
  { timeout 300 "$env/bin/pip" install -q setuptools wheel ninja &&  # DeepSpeed is built here, with PyTorch
    timeout 900 "$env/bin/pip" install -q --no-build-isolation "${packages[@]}"; } >"$tmp/log" 2>&1 ||
    { tail -n 2 "$tmp/log"; echo "SKIP: the clients cannot be had from the package index"; exit 77; }
  : >"$stamp"
fi
# What PyTorch looks for to load the backend, as in Hocket's wheel.
mkdir -p "$tmp/installed/hocket-0.dist-info"
printf 'Metadata-Version: 2.1\nName: hocket\nVersion: 0\n' >"$tmp/installed/hocket-0.dist-info/METADATA"
{ echo '[torch.backends]'; sed -n '/"torch.backends"/,/^$/s/ = "\(.*\)"/ = \1/p' pyproject.toml; } \
  >"$tmp/installed/hocket-0.dist-info/entry_points.txt"
export PYTHONPATH=$PWD/$HK_BUILD/python:$tmp/installed PATH=$env/bin:$PATH
export TORCH_EXTENSIONS_DIR=$PWD/build/frameworks/extensions DS_ACCELERATOR=cpu RAY_USAGE_STATS_ENABLED=0

bad() { # name: shows what it said
  failed=$((failed + 1))
  line FAIL "$1" "$2"
  tail -n 20 "$tmp/out" | sed 's/^/      | /'
}

trains() { # one of torch_clients.py
  local as loss=() ms=() least=() name rc reason launch=(-m hocket.run -n 2)
  [ "$1" != ray ] || launch=()  # it starts its ranks
  [[ $1 == *${ONLY:-}* ]] || return 0
  for as in 0 1; do
    HOCKET_TORCH_AS_GLOO=$as timeout -k 5 600 "$env/bin/python" "${launch[@]}" $here/torch_clients.py "$1" >"$tmp/out" 2>&1
    rc=$? reason=$(sed -n 's/^SKIP: //p' "$tmp/out")
    if [ -n "$reason" ]; then skipped=$((skipped + 1)); line SKIP "$1" "$reason"; return; fi
    if [ $rc != 0 ]; then bad "$1" "exit code $rc"; return; fi
    read -r name "loss[$as]" "ms[$as]" "least[$as]" < <(grep -E '^[a-z:]+ [0-9.]+ [0-9.]+ [0-9.]+$' "$tmp/out")
    if [ "$as" = 1 ] && [ "$name" != hocket ]; then bad "$1" "it runs on ${name:-nothing}"; return; fi
  done
  if [ -n "${loss[0]}" ] && [ "${loss[0]}" = "${loss[1]}" ]; then
    passed=$((passed + 1))
    line PASS "$1" "loss ${loss[1]}, as Gloo's; a step: ${ms[1]} ms (least ${least[1]}), Gloo ${ms[0]} (${least[0]})"
  else
    bad "$1" "loss ${loss[1]}, Gloo ${loss[0]}"
  fi
}

for client in accelerate trainer lightning deepspeed ray; do trains $client; done
if [[ torchft == *${ONLY:-}* ]] && [ -e $here/torch_ft.py ]; then
  if timeout -k 5 200 "$env/bin/python" $here/torch_ft.py >"$tmp/out" 2>&1; then
    passed=$((passed + 1))
    line PASS torchft "$(tail -n 1 "$tmp/out")"
  else
    bad torchft "exit code $?"
  fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
