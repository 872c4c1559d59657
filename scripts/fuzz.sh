#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Runs every test_fuzz_*.c of tests/unit and tests/integration for FUZZ_SECONDS, from a new seed, under ASan and UBSan.
# A fuzz test takes its time from HOCKET_TEST_SECONDS (without it: a fixed number of cases) and its seed from HOCKET_TEST_SEED, and prints the seed.
set -u
seed=${HOCKET_TEST_SEED:-$RANDOM$RANDOM}
bad=0
for source in tests/unit/test_fuzz_*.c tests/integration/test_fuzz_*.c; do
  [ -e "$source" ] || { echo "there are no fuzz tests"; exit 0; }
  name=$(basename "$source" .c)
  [[ $name == *${ONLY:-}* ]] || continue
  echo "$name: ${FUZZ_SECONDS} s, seed $seed"
  CK_DEFAULT_TIMEOUT=0 HOCKET_TEST_SECONDS=$FUZZ_SECONDS HOCKET_TEST_SEED=$seed \
    "${HK_BUILD}-address-undefined/tests/$name" || { echo "$name: FAIL; again with HOCKET_TEST_SEED=$seed"; bad=1; }
done
exit $bad
