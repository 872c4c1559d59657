#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# spack.sh: Spack installs the package of `make dist`, for CPUs; its commands run, and Spack removes it. Neither Debian nor the package index has
# Spack: SPACK= names the command (spack, 1.1 or newer), with compilers that it knows.
set -u
. tests/support/suite.sh
spack=${SPACK:-spack}
command -v "$spack" >/dev/null || { echo "SKIP: no Spack: SPACK=/path/to/bin/spack"; exit 77; }
scripts/dist.sh "$tmp/dist" >/dev/null
repo=$tmp/spack_repo/hocket_test
mkdir -p "$repo/packages" && cp -r "$tmp/dist/spack/hocket" "$repo/packages/" || exit 1
printf 'repo:\n  namespace: hocket_test\n  api: v2.2\n' >"$repo/repo.yaml"
mkdir "$tmp/scope"
printf 'repos:\n  hocket_test: %s\n' "$repo" >"$tmp/scope/repos.yaml"
printf 'config:\n  install_tree: {root: %s}\n  build_stage: [%s]\n' "$tmp/opt" "$tmp/stage" >"$tmp/scope/config.yaml"
run() { "$spack" -C "$tmp/scope" "$@" >"$tmp/out" 2>&1 || { fault "spack $1 fails" 30; exit 1; }; }
# SPACK_INSTALL: more options, as --no-checksum for sources of other packages.
# shellcheck disable=SC2086 # words
run install ${SPACK_INSTALL:-} hocket ~cuda
run location -i hocket
prefix=$(tail -n 1 "$tmp/out")
gives 0 test -f "$prefix/include/nccl.h"
gives 0 "$prefix/bin/hocket" --version
gives 0 "$prefix/bin/all_reduce_perf" --procs 2 -b 8 -e 64K -f 8 -n 2
run uninstall -y hocket
[ ! -e "$prefix" ] || complain "after the removal: $(find "$prefix" ! -type d | head -n 3)"
finish "$("$spack" --version | head -n 1): hocket ~cuda installed, $cases uses, removed"
