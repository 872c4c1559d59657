#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What CONTRIBUTING.md says of a new algorithm, transport and collective: in a copy of the tree this test adds one of each, with no
# other changes, and runs them.
# check: timeout=300
set -u
[ -e "$HK_BUILD/libsupport.a" ] || { echo "SKIP: the tests are not built"; exit 77; }
case $HK_BUILD in *-*) echo "SKIP: tried with the plain build only"; exit 77 ;; esac
copy=$(mktemp -d) && trap 'rm -rf "$copy"' EXIT
mkdir -p "$copy/$HK_BUILD" "$copy/tests/unit"
cp -a Makefile mk src include docs scripts "$copy" && cp -a tests/{support,cudaemu,fakes} "$copy/tests"
# The objects as they are, with their times: only what an addition touches is compiled.
(cd "$HK_BUILD" && find flags src tests/support \( -name '*.[od]' -o -name flags \) -print0 2>/dev/null |
  xargs -0 cp -a --parents -t "$copy/$HK_BUILD")

# An algorithm: a file and a line.
cp tests/extend/crossed.c "$copy/src/collectives"
echo 'HK_ALGORITHM(crossed)' >>"$copy/src/collectives/registry.def"
# A transport: a file and a line, before the one that it is preferred to.
cp tests/extend/threads.c "$copy/src/transport"
sed -i 's/^HK_TRANSPORT(shm)/HK_TRANSPORT(threads)\n&/' "$copy/src/transport/registry.def"
# A collective: a row, its function, an algorithm.
sed -i 's/^HK_COLL(GATHER, /HK_COLL(MIRROR_GATHER, "MirrorGather", 0, 0, 1, 0, 1, 0, 0, 1.0 * (n - 1) \/ n, n - 1 - rank, n - 1 - block, 0, MIRROR_GATHER)\n&/' \
  "$copy/src/program/coll.def"
cp tests/extend/api_mirror.c "$copy/src/api"
cp tests/extend/mirror.c "$copy/src/collectives"
echo 'HK_ALGORITHM(mirror)' >>"$copy/src/collectives/registry.def"
cp tests/extend/test_extended.c "$copy/tests/unit"

cd "$copy" || exit 1
# Nearly all files include coll.def; they are compiled without optimization. FLAGS_TEXT keeps make from compiling the copied objects again.
"${HK_MAKE:-make}" -j"$(nproc)" --no-print-directory BUILD="$HK_BUILD" CFLAGS="-O0 -g1" FLAGS_TEXT="$(cat "$HK_BUILD/flags")" \
  "$HK_BUILD/tests/test_extended" >out 2>&1 ||
  { grep -v '^  CC' out | tail -n 20; exit 1; }
compiled=$(grep -c '^  CC' out)
scripts/layers.sh >out || { cat out; exit 1; }
NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,P2P,TUNING NCCL_ALGO=allreduce:crossed timeout 60 "$HK_BUILD/tests/test_extended" >out 2>&1 ||
  { echo "exit code $?"; grep -v INFO out | tail -n 20; exit 1; }
for line in 'AllReduce by crossed' 'MirrorGather by mirror' 'rank 0 reaches rank 1 via threads' 'rank 0 reaches rank 0 via self'; do
  grep -q "$line" out || { echo "no line like \"$line\":"; tail -n 20 out; exit 1; }
done
echo "an algorithm, a transport and a collective work; $compiled files compiled"
