#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=400 long=suites
# The site of all pages, manual pages and headers builds, and its links and anchors lead somewhere. `make check-site` also takes pictures of
# it. Sphinx comes from the package index.
set -u
. tests/support/suite.sh
command -v python3 >/dev/null && python3 -c 'import ensurepip' 2>/dev/null || { echo "python3 with venv is not here"; exit 77; }
for command in doxygen mandoc; do
  command -v $command >/dev/null || { echo "$command is not here (Debian: $command)"; exit 77; }
done
[ -d "$HK_BUILD/man/man1" ] || { echo "the manual pages are not built: make man"; exit 77; }
timeout 350 scripts/site.sh >"$tmp/out" 2>&1
case $? in
  0) ;;
  77) tail -n 1 "$tmp/out"; exit 77 ;;
  *) fault "the site does not build" ;;
esac
tests/packages/site.py build/site --no-pictures || bad=1
finish "the site builds"
