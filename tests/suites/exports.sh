#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library as the loader and NCCL's clients see it: exactly the symbols of tests/exports.txt (hocket* next to them), the
# SONAME, no dependency but the C library, the version's text, the size budget.
set -u
lib=$HK_BUILD/lib/libnccl.so.2
. tests/support/suite.sh

has=$(nm -D --defined-only "$lib" | awk '{ print $(NF-1), $NF }' | LC_ALL=C sort)
want=$(LC_ALL=C sort tests/exports.txt)
missing=$(comm -13 <(echo "$has") <(echo "$want"))
extra=$(comm -23 <(echo "$has") <(echo "$want") | grep -v ' hocket')
[ -z "$missing" ] || complain "missing (W is weak, T strong): $(echo "$missing" | tr '\n' ',')"
[ -z "$extra" ] || complain "not to be exported: $(echo "$extra" | tr '\n' ',')"

soname=$(readelf -d "$lib" | sed -n 's/.*SONAME.*\[\(.*\)\]/\1/p')
[ "$soname" = libnccl.so.2 ] || complain "SONAME is '$soname', not libnccl.so.2"
if readelf -V "$lib" | grep -q 'Version definition section'; then
  complain "the library defines symbol versions; NCCL's does not"
fi
# libm, libpthread, libdl and librt are the C library too, in files of their own.
needed=$(readelf -d "$lib" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|libpthread|libdl|librt)\.so|^ld-linux')
[ -z "$needed" ] || complain "needs at load time: $needed (load it with dlopen instead)"
grep -qaF 'NCCL version 2.32.3+cuda13.4' "$lib" || complain "the text 'NCCL version 2.32.3+cuda13.4' is not in the library"
bytes=$(stat -c %s "$lib")
[ "$bytes" -le $((20 * 1000 * 1000)) ] || complain "the library has $bytes bytes; the budget is 20 MB"
finish "$(wc -l <tests/exports.txt) symbols, $((bytes / 1024)) KiB"
