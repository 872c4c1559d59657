#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=180
# `make bench` in small: one operation compared with Open MPI, where that is here; the results' files are whole.
set -u
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
command -v python3 >/dev/null || { echo "python3 is not here"; exit 77; }
[ -x "$HK_BUILD/bin/all_reduce_perf" ] || { echo "the perf binaries are not built"; exit 77; }
MPIS=openmpi bench/run.sh --only peers --operations all_reduce,alltoall --transports shm --ranks 2 --sizes 64,8K --repeats 1 --batches 2 \
  --seconds 0.01 --candidates hocket,hocket-reg,openmpi --out "$tmp/r" >"$tmp/out" 2>&1 || { cat "$tmp/out"; exit 1; }
grep -E '^SKIP: openmpi' "$tmp/out"
python3 - "$tmp/r.json" <<'END' || { cat "$tmp/out" "$tmp/r.md"; exit 1; }
import json, sys
cells = json.load(open(sys.argv[1]))["us"]
assert sorted((c["operation"], c["bytes"]) for c in cells) == [(o, b) for o in ("all_reduce", "alltoall") for b in (64, 8192)]
assert all(c["hocket"][0] > 0 and c["hocket-reg"][0] > 0 for c in cells), cells
END
rows=$(grep -cE '^\| (all_reduce|alltoall) \| shm \| 2 \| ' "$tmp/r.md")
[ "$rows" = 4 ] || { echo "the table has $rows rows, not 4"; cat "$tmp/r.md"; exit 1; }
echo "$rows cells compared with $(sed -n 's/^- openmpi: \(Open MPI [^;]*\);.*/\1/p' "$tmp/r.md" | grep . || echo 'no peer')"
