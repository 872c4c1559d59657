#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# layers.sh: compares every #include under src/ with the table "Folders and dependencies" of docs/architecture.md, and warns of
# files longer than 600 lines.  Exit code 1 if an include is not in the table, two types have one name, or (in $HK_BUILD, if it has
# objects) more than four files call each other in a circle.
set -u
cd "$(dirname "$0")/.." || exit 1
table=docs/architecture.md
find src -name '*.[ch]' -o -name '*.def' -o -name '*.cu' | LC_ALL=C sort | xargs awk -v table="$table" '
# A row "| `folder` | what it is for | `x`, `y/z.h` |": the folder may include x and the header y/z.h.
FILENAME == table {
  if ($0 ~ /^\| `[a-z]+` \|/) {
    split($0, cell, "|")
    folder = cell[2]
    gsub(/[ `]/, "", folder)
    only[folder] = cell[4] ~ /(^|[ ,])only / # not even the rest of base
    public[folder] = cell[4] ~ /everything|public API|`nccl\.h`/
    may[folder] = cell[4] ~ /everything/ ? "*" : ""
    if (may[folder] != "*") while (match(cell[4], /`[^`]*`/)) {
      may[folder] = may[folder] " " substr(cell[4], RSTART + 1, RLENGTH - 2)
      cell[4] = substr(cell[4], RSTART + RLENGTH)
    }
  }
  next
}
function complain(text) { print FILENAME ":" FNR ": " text; bad = 1 }
# "src/a/b/../../c/d.h" without the dots, from below src/.
function resolve(folder, name,    parts, n, i, out, m) {
  n = split(folder "/" name, parts, "/")
  for (i = 1; i <= n; i++) {
    if (parts[i] == "..") m--
    else if (parts[i] != "." && parts[i] != "") out[++m] = parts[i]
  }
  name = out[2]
  for (i = 3; i <= m; i++) name = name "/" out[i]
  return name
}
function check(path,    to, rules, n, i) {
  includes++
  to = path
  sub("/.*", "", to)
  if (to == from || may[from] == "*") return
  n = split(may[from], rules, " ")
  if (to == "base" && !only[from]) return
  for (i = 1; i <= n; i++) if (rules[i] == to || rules[i] == path) return
  complain(from " must not include " path " (" table " lists:" (only[from] ? "" : " base") may[from] ")")
}
FNR == 1 {
  files++
  folder = FILENAME
  sub("/[^/]*$", "", folder)
  from = folder
  sub("^src/?", "", from)
  sub("/.*", "", from)
  if (!(from in may)) { complain(table " has no row for src/" from); may[from] = "" }
}
/^[ \t]*#[ \t]*include[ \t]*"/ { split($0, quoted, "\""); check(resolve(folder, quoted[2])) }
/^[ \t]*#[ \t]*include[ \t]*<(nccl|hocket)\.h>/ && !public[from] {
  complain(from " must not include the public headers (" table ")")
}
/^} hk_[a-z0-9_]+;/ {
  if ($2 in type && type[$2] != FILENAME) complain("the type " substr($2, 1, length($2) - 1) " is named in " type[$2] ", too")
  type[$2] = FILENAME
}
FNR == 601 { print "warning: " FILENAME " has more than 600 lines: split it" }
END {
  if (!bad) print includes " includes of " files " files are as " table " allows"
  exit bad
}' "$table" || exit 1
objects=${HK_BUILD:-build/gcc}/src
[ -d "$objects/core" ] || exit 0
command -v python3 >/dev/null || { echo "SKIP: circles of calls: there is no python3"; exit 0; }
python3 -B scripts/circles.py "$objects" 4
