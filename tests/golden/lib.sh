# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For the suites of the command hocket: what it prints is compared with the files of this folder.
# HOCKET_TEST_UPDATE=1 writes the files instead; look at the difference before you commit it.
. tests/support/suite.sh
hocket=$PWD/${HK_BUILD:=build/gcc}/bin/hocket
[ -x "$hocket" ] || { echo "the command hocket is not built"; exit 77; }
# What the machine's owner has set must not change what is printed.
export LC_ALL=C HOME=$tmp NO_COLOR=1
for variable in $(compgen -e | grep -E '^(NCCL|HOCKET)_' | grep -v '^HOCKET_TEST_'); do unset "$variable"; done

# refuses TEXT ARGUMENTS...: exit code 2, the text on stderr, nothing on stdout.
refuses() {
  gives 2 "$hocket" "${@:2}"
  grep -qF -- "$1" "$tmp/err" || complain "'hocket ${*:2}' does not say '$1': $(cat "$tmp/err")"
  [ -s "$tmp/out" ] && complain "'hocket ${*:2}' writes to stdout all the same"
  return 0
}

# golden NAME ARGUMENTS...: what hocket prints is what the file says.
golden() {
  gives 0 "$hocket" "${@:2}"
  if [ -n "${HOCKET_TEST_UPDATE:-}" ]; then
    cp "$tmp/out" "tests/golden/$1"
  elif ! diff -u "tests/golden/$1" "$tmp/out" >"$tmp/diff"; then
    complain "'hocket ${*:2}' does not print tests/golden/$1:"
    head -n 30 "$tmp/diff"
  fi
  narrow "${*:2}"
}

# narrow WHAT: no line of the last command is wider than 100 columns.
narrow() {
  local wide
  wide=$(awk 'length($0) > 100' "$tmp/out" | head -n 1)
  [ -z "$wide" ] || complain "'hocket $1' prints more than 100 columns: $wide"
}
