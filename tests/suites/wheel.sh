#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=400
# `make wheel` builds wheels that a fresh environment installs without an index: the module, the measurement, the commands, a C
# program, and NCCL's place. The tools that build wheels come from the package index.
set -u
. tests/support/suite.sh
command -v python3 >/dev/null && python3 -c 'import ensurepip' 2>/dev/null || { echo "python3 with venv is not here"; exit 77; }
if ! timeout 250 "$HK_MAKE" --no-print-directory BUILD="$HK_BUILD" WHEEL_NVCC= wheel >"$tmp/log" 2>&1; then
  tail -n 5 "$tmp/log"
  grep -q 'cannot be had from the package index' "$tmp/log" && { echo "SKIP: hatchling and auditwheel cannot be had from the package index"; exit 77; }
  echo "make wheel fails"
  exit 1
fi
wheels=(build/wheel/*.whl)
[ ${#wheels[@]} = 2 ] || complain "wanted two wheels, there are ${wheels[*]}"
# glibc 2.34 is that of RHEL 9; Debian 12 and Ubuntu 22.04 have newer ones. The headers of 2.38 and newer ask for the strtol of 2.38.
least=34
[ "$(getconf GNU_LIBC_VERSION | sed 's/.*\.//')" -lt 38 ] || least=38
for wheel in "${wheels[@]}"; do
  tag=${wheel##*manylinux_2_}
  [[ $wheel == *-py3-none-manylinux_2_[0-9]*.whl ]] && [ "${tag%%_*}" -le $least ] || complain "$wheel wants a newer Linux than glibc 2.$least"
done

python3 -m venv "$tmp/env" || exit 1
env=$tmp/env/bin
PATH=$env:$PATH
unset PYTHONPATH
cd "$tmp" || exit 1
run() { # command...
  timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" || complain "'$*' ends with code $?: $(tail -n 5 "$tmp/out" "$tmp/err")"
}
says() { grep -qE -- "$1" "$tmp/out" || complain "'$1' is not in: $(cat "$tmp/out")"; }
run "$env/pip" install -q --no-index --disable-pip-version-check "$OLDPWD"/build/wheel/hocket-*.whl
run python -c 'import importlib.metadata as m; print({f.parts[0] for f in m.files("hocket") if not f.parts[0].endswith("info") and f.parts[0] != ".."})'
says "^.'hocket'.$"
run python -m hocket.bench -e 4K -f 512
says '^ *4096  *[0-9]'
run hocket topo
says 'CPU0'
run python -c 'from hocket.program import Program, chunk
with Program("AllReduce", "pair", ranks=2, chunks=1) as pair: chunk(0, "input").reduce(chunk(1, "input")).copy(1)
print(pair.check())'
says 'proved'
run ncclras --version
says '^hocket '
run python -m hocket topo --machine 8xh100:nvswitch4
says 'GPU7'
run all_reduce_perf --procs 2 -b 8 -e 8
says 'Out of bounds values : 0 OK'
for name in "$env"/*_perf; do run "$name" --help; done
run python -c 'import array, hocket; c = hocket.init(); x = array.array("f", [2]); c.all_reduce(x); print(x[0], hocket.__version__, hocket.version())'
says '^2.0 ([0-9.]+) \1$'
run python -m hocket.run -n 2 "$OLDPWD/tests/python/collectives.py"
cp "$OLDPWD/examples/first.c" .
# shellcheck disable=SC2016 # for the shell inside
run bash -c 'lib=$(python -c "import hocket; print(hocket.get_library())") &&
  gcc -DHOCKET_NO_CUDA_HEADERS -I"$(python -c "import hocket; print(hocket.get_include())")" first.c "$lib" -Wl,-rpath,"$(dirname "$lib")" -o first && ./first'
says 'rank 1 gave 2 and got the sum 3'

# NCCL's place: over the files of NVIDIA's wheel, as PyTorch looks for them.
site=$(python -c 'import site; print(site.getsitepackages()[0])')
mkdir -p "$site/nvidia/nccl/lib" && echo "NVIDIA's" >"$site/nvidia/nccl/lib/libnccl.so.2"
run "$env/pip" install -q --no-index --disable-pip-version-check "$OLDPWD"/build/wheel/hocket_nccl_cu13-*.whl
run python -c 'import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); v = ctypes.c_int(); assert l.ncclGetVersion(ctypes.byref(v)) == 0; print(v.value, l.hocketVersion())' "$site/nvidia/nccl/lib/libnccl.so.2"
says '^2[0-9]{4} [0-9]+$'
# The module brings no file of NCCL's name: PyTorch in the same process keeps its own NCCL.
run python -c 'import hocket; print(any("libnccl" in line for line in open("/proc/self/maps")))'
says False
finish "${wheels[*]##*/}"
