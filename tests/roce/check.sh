#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check.sh: all that is tested in the guest; each part in a guest of its own.  ONLY=word runs the parts with it in their name.
set -u
export HK_BUILD=${HK_BUILD:-build/gcc}
tests/roce/image.sh || { code=$?; [ $code = 77 ] && exit 0; exit $code; }
failed=0 # the time limit is for hangs: on a busy machine the collectives alone take half an hour
for part in collectives devices faults storm ktls; do
  [ -x tests/roce/$part.sh ] || continue
  [[ $part == *${ONLY:-}* ]] || continue
  began=$SECONDS
  if text=$(tests/roce/guest.sh --timeout 5400 --memory 2048 env HK_BUILD="$HK_BUILD" tests/roce/$part.sh 2>&1); then
    echo "PASS  $part  $((SECONDS - began)) s  $(tail -n 1 <<<"$text")"
    grep '^SKIP' <<<"$text" | sed 's/^/      | /'
  else
    failed=1
    echo "FAIL  $part  $((SECONDS - began)) s"
    sed 's/^/      | /' <<<"$text"
  fi
done
exit $failed
