# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For suites that judge what commands print: `. tests/support/suite.sh`. $tmp is a folder of their own; a fault is reported, and the
# suite goes on.
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT || exit 1
bad=0 cases=0
complain() { echo "$*"; bad=1; }

# fault TEXT [LINES]: a fault, with the last lines of $tmp/out.
fault() {
  complain "$1"
  tail -n "${2:-15}" "$tmp/out" | sed 's/^/    | /'
}
# has RE WHAT, hasnt RE WHAT: $tmp/out has a line like this, or none.
has() { grep -qE -- "$1" "$tmp/out" || fault "$2: no line like /$1/"; }
hasnt() { grep -qE -- "$1" "$tmp/out" && fault "$2: a line like /$1/"; }

# gives CODE COMMAND...: runs it; the exit code must be this.  Output in $tmp/out and $tmp/err.
gives() {
  local want=$1 got
  shift
  cases=$((cases + 1))
  timeout 60 "$@" >"$tmp/out" 2>"$tmp/err" </dev/null
  got=$?
  [ "$got" = "$want" ] || complain "'${*##*/}' ends with code $got instead of $want: $(head -n 3 "$tmp/err")"
}

# says TEXT: the last command wrote it, to either stream.
says() { cat "$tmp/out" "$tmp/err" | grep -qF -- "$1" || complain "'$1' is not said: $(cat "$tmp/out" "$tmp/err" | head -n 5)"; }

# finish TEXT: ends the suite; the text is printed if there was no fault.
finish() {
  [ $bad = 0 ] && echo "$1"
  exit $bad
}
