#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The library has no writable statics but those of scripts/statics.txt, each of which has a reason there; and a lock among
# them is held over fork.  Static functions carry the name of their file, because a backtrace shows no file.
set -u
command -v objdump >/dev/null || { echo "SKIP: objdump is not installed"; exit 77; }
objects=$HK_BUILD/src
[ -d "$objects" ] || { echo "$objects is not there: make lib"; exit 1; }

# All objects that have a source: an older tree may have left others.
compiled() {
  find "$objects" -name '*.o' | while IFS= read -r object; do
    file=${object#"$objects"/}
    [ ! -e "src/${file%.o}.c" ] || echo "$object"
  done
}
# "file name" a line; what only the loader writes (.data.rel.ro) is constant.
found() {
  compiled | grep -vE '/(perf|tools)/' | xargs objdump -t | awk -v root="$objects/" '
    / file format / { file = substr($1, length(root) + 1); sub(/\.o:$/, "", file) }
    NF > 4 && $(NF - 2) ~ /^\.t?(data|bss)$/ && / O / {
      sub(/\.[0-9]+$/, "", $NF) # of a static inside a function
      print file, $NF }' | sort
}
# The names of a line are those before the reason: two blanks end them.
listed() { sed '/^#/d; s/^\([^ ]*\) */\1 /; s/  .*//' scripts/statics.txt | awk '{ for (i = 2; i <= NF; i++) print $1, $i }' | sort; }
difference=$(diff <(listed) <(found))
if [ -n "$difference" ]; then
  echo "writable statics differ from scripts/statics.txt (<: listed only, >: found only):"
  grep '^[<>]' <<<"$difference"
  exit 1
fi
for source in $(grep -rl --include='*.c' PTHREAD_MUTEX_INITIALIZER src | grep -v '^src/\(perf\|tools\)/'); do
  [ "$(grep -c PTHREAD_MUTEX_INITIALIZER "$source")" = "$(grep -c '^HK_FORK_GUARD(' "$source")" ] ||
    { echo "$source has a global lock that is not held over fork: give each one HK_FORK_GUARD (src/base/fork.h)"; exit 1; }
done
# kernels/host and perf/data_reduce are compiled for several instruction sets under one set of names; perf/operations.c has a table.
strangers=$(compiled | grep -vE '/kernels/host/|/perf/operations\.o$|/data_reduce[^/]*$' | xargs nm -A | awk -v root="$objects/" '
  $2 == "t" {
    file = substr($1, length(root) + 1)
    sub(/\.o:.*/, "", file)
    sub(/\..*/, "", $3) # .part, .constprop and the like
    n = split(file, path, "/")
    words = split(path[n] "_" path[n - 1], word, "_")
    good = $3 ~ /^_*(hk_|hocket|nccl|pnccl)/
    for (i = 1; i <= words; i++) good = good || index($3, word[i]) == 1
    if (!good) print "src/" file ".c: " $3 }' | sort -u)
[ -z "$strangers" ] || { echo "static functions without the name of their file:"; echo "$strangers"; exit 1; }
echo "$(listed | wc -l) writable statics, each with a reason"
