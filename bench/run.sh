#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# `make bench`: Hocket and its peers side by side, then Hocket's own limits; results in the build folder.
# Options go to run.py: --quick, --help and so on.
set -eu
cd "$(dirname "$0")/.."
HK_BUILD=${HK_BUILD:-build/gcc}
command -v python3 >/dev/null || { echo "bench/run.py needs python3"; exit 1; }
read -ra mpis <<<"${MPIS-openmpi mpich impi}" # `MPIS=` installs none
[ ${#mpis[@]} = 0 ] || bench/get_mpi.sh "${mpis[@]}" || true
exec python3 -B bench/run.py --build "$HK_BUILD" "$@"
