#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# layers.sh: reads every #include under src/ and says which go against the direction of the design (docs/architecture.md,
# "What is where"); also warns of files longer than 600 lines.  Exit code 1 on a violation.
set -u
cd "$(dirname "$0")/.." || exit 1
find src -name '*.[ch]' -o -name '*.def' -o -name '*.cu' | LC_ALL=C sort | xargs awk '
BEGIN {
  # What a folder may include beside itself and base; "x/y.h" is one header of another folder.
  may["base"] = may["device"] = may["topo"] = may["program"] = ""
  may["sim"] = "program topo collectives"
  may["transport"] = "device topo program"
  may["netplugin"] = "transport"
  may["kernels"] = "program transport/link.h"
  may["collectives"] = "program topo"
  may["boot"] = "runtime/comm.h"
  may["gpu"] = "transport program kernels collectives device topo boot runtime sim"
  may["runtime"] = may["tools"] = "*"
  # The public API only, so that the same binary runs with another libnccl.so.2; and what is linked or compiled into it.
  may["perf"] = "! base/json.h base/cuda_abi.h base/launchers.def"
  public["boot"] = public["runtime"] = public["perf"] = public["tools"] = 1
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
  if (to == "base" && rules[1] != "!") return
  for (i = 1; i <= n; i++) if (rules[i] == to || rules[i] == path) return
  if (rules[1] == "!") complain(from " uses the public API only, not " path)
  else complain(from " must not include " path " (it may use: base " may[from] ")")
}
FNR == 1 {
  files++
  folder = FILENAME
  sub("/[^/]*$", "", folder)
  from = folder
  sub("^src/?", "", from)
  sub("/.*", "", from)
  if (!(from in may)) { complain("scripts/layers.sh does not say what src/" from " may include"); may[from] = "" }
}
/^[ \t]*#[ \t]*include[ \t]*"/ { split($0, quoted, "\""); check(resolve(folder, quoted[2])) }
/^[ \t]*#[ \t]*include[ \t]*<(nccl|hocket)\.h>/ && !(from in public) {
  complain("only boot, runtime, perf and tools include the public headers")
}
FNR == 601 { print "warning: " FILENAME " has more than 600 lines: it wants a second file" }
END {
  if (!bad) print includes " includes of " files " files go the right way"
  exit bad
}' || exit 1
