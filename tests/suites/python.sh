#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=400
# The Python package as `make python` lays it out: what memory objects have, all operations between processes, how ranks find each
# other, algorithms from scripts, the programs as modules, and that the sources have no fault that pyflakes or ruff sees.
set -u
tests=tests/python
. tests/support/suite.sh
[ -e "$HK_BUILD/python/hocket/lib/libhocket.so" ] || { echo "the Python package is not built: make python"; exit 77; }
command -v python3 >/dev/null || { echo "there is no python3"; exit 77; }
export PYTHONPATH=$PWD/$HK_BUILD/python PYTHONDONTWRITEBYTECODE=1 TMPDIR=$tmp
# A python3 that is not the distribution's does not see the distribution's NumPy.
python=python3
if ! python3 -c 'import numpy' 2>/dev/null && /usr/bin/python3 -c 'import numpy' 2>/dev/null; then python=/usr/bin/python3; fi

try() { # name command...
  local name=$1
  shift
  if timeout 100 "$@" >"$tmp/out" 2>"$tmp/err"; then
    grep '^SKIP: ' "$tmp/out"
  else
    complain "$name ended with code $?:"
    tail -n 20 "$tmp/out" "$tmp/err"
  fi
}

try "what memory objects have" $python $tests/buffers.py
for n in 1 2 4; do try "$n ranks" $python -m hocket.run -n $n $tests/collectives.py; done
try "programs" $python $tests/programs.py
try "how ranks find each other" $python $tests/bootstrap.py
try "the measurement" $python -m hocket.bench -e 4K -f 512
grep -q '^ *4096  *[0-9]' "$tmp/out" || complain "hocket.bench shows no result: $(cat "$tmp/out")"
try "the command hocket" $python -m hocket --version
# Every program has an entry point, and the headers' structures are those of the package.
for binary in "$HK_BUILD"/bin/*_perf "$HK_BUILD/python/hocket/bin/hocket"; do
  grep -q "^$(basename "$binary") = " pyproject.toml || complain "pyproject.toml has no entry point $(basename "$binary")"
done
cat >"$tmp/sizes.c" <<'C'
#include <hocket.h>
#include <stdio.h>
int main(void) { ncclConfig_t c = NCCL_CONFIG_INITIALIZER; printf("%zu %u %u\n", c.size, c.magic, c.version); return 0; }
C
gcc -DHOCKET_NO_CUDA_HEADERS -Iinclude -o "$tmp/sizes" "$tmp/sizes.c" || complain "the sizes do not compile"
ours=$($python -c 'from hocket._lib import config; c = config({}); print(c.size, c.magic, c.version)')
[ "$ours" = "$("$tmp/sizes")" ] || complain "ncclConfig_t in Python: $ours, in C: $("$tmp/sizes")"
$python - <<'PY' || complain "the enumerations of nccl.h are not those of the Python package"
import re
from hocket import DataType, Op
known = {t.name.replace("_", "").lower(): int(t) for t in DataType} | {o.name.lower(): int(o) for o in Op}
text = open("include/nccl.h").read()
in_c = {n.lower(): int(v) for n, v in re.findall(r"^ +nccl([A-Z]\w*) = (\d+),", text, flags=re.M)}
wrong = {n: v for n, v in known.items() if in_c.get(n) != v}
raise SystemExit(f"{wrong}" if wrong else 0)
PY

if command -v ruff >/dev/null; then ruff check -q python tests/python || bad=1
elif command -v pyflakes3 >/dev/null; then pyflakes3 python tests/python || bad=1
elif $python -c 'import pyflakes' 2>/dev/null; then $python -m pyflakes python tests/python || bad=1
else echo "SKIP: neither ruff nor pyflakes is installed: the Python sources are compiled only"
fi
for source in python/*.py python/hocket/*.py python/hocket/*/*.py tests/python/*.py; do
  [ -e "$source" ] || continue
  $python -c 'import sys; compile(open(sys.argv[1]).read(), sys.argv[1], "exec")' "$source" || bad=1
  long=$(awk 'length($0) > 120 { print FILENAME ":" FNR }' "$source")
  [ -z "$long" ] || complain "lines have at most 120 columns: $long"
done
finish "buffers, operations, launchers"
