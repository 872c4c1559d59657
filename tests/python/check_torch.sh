#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The backend hocket of torch.distributed with PyTorch's wheel from the package index: every collective compared with Gloo, training,
# and PyTorch's own tests. The wheel stays in build/frameworks/torch (6 GB), the environment of `make check-frameworks`; another
# version than TORCH's default in build/frameworks/torch-VERSION.
# Environment: HK_BUILD, TORCH=2.15 (version), ONLY=pattern of names, INSTALL=no (only if the wheel is there), OWN=no (not PyTorch's
# own tests), PYTORCH=DIR (PyTorch's sources of the same version: its wheel lacks the tests of groups that change).
set -u
HK_BUILD=${HK_BUILD:-build/gcc} TORCH=${TORCH:-2.15}
env=$PWD/build/frameworks/torch here=tests/python
[ "$TORCH" = 2.15 ] || env+=-$TORCH
passed=0 failed=0 skipped=0
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_CACHE_DIR=$PWD/build/frameworks/cache PYTHONDONTWRITEBYTECODE=1
export PYTHONPATH=$PWD/$HK_BUILD/python OMP_NUM_THREADS=1
line() { printf '%s  %-16s %s\n' "$1" "$2" "$3"; }
[ -e "$HK_BUILD/python/hocket/lib/libhocket.so" ] || { echo "SKIP: the Python package is not built: make python"; exit 77; }
version() { [[ $(sed -n "s/^__version__ = '\(.*\)'/\1/p" "$env"/lib/python3*/site-packages/torch/version.py 2>/dev/null) == "$TORCH".* ]]; }
if ! version; then
  [ "${INSTALL:-}" != no ] || { echo "SKIP: PyTorch $TORCH is not in build/frameworks: make check-torch installs it (6 GB)"; exit 77; }
  mkdir -p build/frameworks
  [ -x "$env/bin/pip" ] || python3 -m venv "$env" || { echo "SKIP: python3 -m venv fails"; exit 77; }
  timeout 900 "$env/bin/pip" install -q "torch==$TORCH.*" numpy expecttest >"$tmp/log" 2>&1 ||
    { tail -n 2 "$tmp/log"; echo "SKIP: PyTorch $TORCH cannot be had from the package index"; exit 77; }
fi

try() { # name ranks script...
  local name=$1 ranks=$2 rc
  shift 2
  [[ $name == *${ONLY:-}* ]] || return 0
  timeout -k 5 200 "$env/bin/python" -m hocket.run -n "$ranks" "$@" >"$tmp/out" 2>&1
  rc=$?
  if [ $rc = 0 ]; then
    passed=$((passed + 1))
    line PASS "$name" "$(tail -n 1 "$tmp/out")"
    grep '^SKIP: ' "$tmp/out"
  else
    failed=$((failed + 1))
    line FAIL "$name" "exit code $rc"
    grep -v 'NCCL WARN' "$tmp/out" | tail -n 20 | sed 's/^/      | /'
  fi
}

for n in 2 4; do try c10d-$n $n $here/torch_c10d.py; done
cp -rs "$PWD/$HK_BUILD/python" "$tmp/plain" && rm -f "$tmp"/plain/hocket/torch/_calls*
PYTHONPATH=$tmp/plain try c10d-plain 2 $here/torch_c10d.py  # without the compiled module
try c10d-mixed 2 $here/torch_c10d.py cpu:hocket,cuda:gloo
try exit 1 $here/torch_exit.py
for n in 2 4; do try life-$n $n $here/torch_life.py; done
for t in elastic reconfigure; do try $t 3 $here/torch_$t.py; done
try flight 3 $here/torch_flight.py
try profile 2 $here/torch_profile.py
for n in 2 3; do try window-$n $n $here/torch_window.py; done
TORCH_FR_BUFFER_SIZE=100 try c10d-recorded 2 $here/torch_c10d.py cpu:hocket,cuda:gloo
for n in 2 4; do try train-$n $n $here/torch_train.py; done
for n in 2 4; do try parallel-$n $n $here/torch_parallel.py; done
if [[ docs == *${ONLY:-}* ]]; then
  if PATH=$env/bin:$PATH timeout 200 "$env/bin/python" $here/pages.py --rules <(echo "elsewhere :: ^make :: make check-torch") "$tmp" docs/torch.md >"$tmp/out" 2>&1; then
    passed=$((passed + 1))
    line PASS docs "$(tail -n 1 "$tmp/out")"
  else
    failed=$((failed + 1))
    line FAIL docs "$(tail -n 3 "$tmp/out")"
  fi
fi
if [ "${OWN:-}" != no ] && [[ own == *${ONLY:-}* ]]; then
  "$env/bin/python" -c 'import expecttest' 2>/dev/null || "$env/bin/pip" install -q expecttest
  if timeout -k 5 1500 "$env/bin/python" $here/torch_own.py; then passed=$((passed + 1)); else failed=$((failed + 1)); fi
fi
if [[ fault == *${ONLY:-}* ]]; then
  own=test/distributed/test_c10d_fault_tolerance.py
  if [ ! -e "${PYTORCH:-}/$own" ]; then
    skipped=$((skipped + 1))
    line SKIP fault "PYTORCH does not name a folder with PyTorch's sources: its wheel lacks $own"
  elif timeout -k 5 1200 "$env/bin/python" $here/torch_fault.py "$PYTORCH" >"$tmp/out" 2>"$tmp/log"; then
    passed=$((passed + 1))
    line PASS fault "$(tail -n 1 "$tmp/out")"
  else
    failed=$((failed + 1))
    line FAIL fault "$(tail -n 20 "$tmp/out" | sed '2,$s/^/      | /')"
  fi
fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed = 0 ]
