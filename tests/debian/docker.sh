#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# docker.sh: the steps of packaging/docker/Dockerfile, in chroots, because no container engine is on the machines that test Hocket: each stage
# is a fresh Debian, COPY copies what .dockerignore leaves, RUN runs as the stage's user. Then the image's command and a collective.
# It needs root and debootstrap. KEEP=1 keeps build/debian/docker-STAGE.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/debian/chroots.sh
release=trixie root='' user=root here=/ began=$SECONDS
declare -A argument
log=$folder/logs/docker.log
fail() { report "docker $*" 1 $((SECONDS - began)) "$(tail -n 1 "$log")"; exit 1; }
expand() { local text=$1 name; for name in "${!argument[@]}"; do text=${text//\$\{$name\}/${argument[$name]}}; done; echo "$text"; }

stage() { # image [as NAME]
  [[ $1 == debian:$release-slim ]] || fail "FROM $1: this test has debian:$release-slim"
  root=$folder/docker-${3:-final} user=root here=/
  rm -rf --one-file-system "$root"
  cp -a --reflink=auto "$folder/$release.pristine" "$root"
  mkdir -p "$folder/cache/$release.debs/partial"
}
copy() { # source target | --from=STAGE source target
  if [[ $1 == --from=* ]]; then
    cp -a "$folder/docker-${1#--from=}$2" "$root$3"
  else
    mkdir -p "$root$2" && git archive HEAD | tar -x -C "$root$2"
  fi
}

pristine $release || exit 1
: >"$log"
while read -r word rest; do
  rest=$(expand "$rest")
  echo "$word $rest" >>"$log"
  # shellcheck disable=SC2086 # words
  case $word in
    ARG) argument[${rest%%=*}]=${rest#*=} ;;
    FROM) stage $rest ;;
    COPY) copy $rest || fail "COPY $rest" ;;
    RUN) enter "$root" $user "cd $here && { $rest; }" >>"$log" 2>&1 || fail "RUN $rest" ;;
    USER) user=$rest ;;
    WORKDIR) here=$rest ;;
    CMD) command=$(python3 -c 'import json, shlex, sys; print(shlex.join(json.loads(sys.argv[1])))' "$rest") ;;
    *) fail "$word is unknown to this test" ;;
  esac
done < <(sed -z 's/\\\n *//g' packaging/docker/Dockerfile | grep -vE '^(#|$)')
for each in "$command" 'all_reduce_perf --procs 2 -b 8 -e 64K -f 8 -n 2' 'python3 -c "import hocket; print(hocket.__version__)"'; do
  enter "$root" "$user" "cd $here && $each" >>"$log" 2>&1 || fail "$each"
done
grep -q 'values : 0 OK' "$log" || fail "no result of all_reduce_perf"
report "docker, as $user" 0 $((SECONDS - began)) "$(tail -n 1 "$log")"
[ -n "${KEEP:-}" ] || rm -rf --one-file-system "$folder"/docker-*
