#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# figures.sh: prints how large and how entangled the code is: lengths of files and functions, headers that a source reaches, long
# lines, writable statics, documented symbols.  A mirror for authors, not a gate: `make check` does not run it.
#
# The models' column has what well-kept libraries of the field reach (liburing, MSCCL++, hwloc): docs/architecture.md.
set -u
export LC_ALL=C
HK_BUILD=${HK_BUILD:-build/gcc}

sources() { git ls-files "$1/*.c" "$1/*.h" "$1/*.cu" "$1/*.cuh"; }

# "median p99 max" of the numbers on stdin.
spread() {
  sort -n | awk '{ v[NR] = $1 } END {
    if (!NR) { print "- - -"; exit }
    q = int(NR * 0.99 + 0.999); print v[int((NR + 1) / 2)], v[q], v[NR] }'
}

# "length file:line" of each function.  The code is formatted by clang-format: a function begins at column 1, its signature ends in
# ") {", and the next "}" at column 1 is its end.
functions() {
  awk 'FNR == 1 { inside = 0; sig = 0 }
    !inside && /^[A-Za-z_]/ { sig = FNR }
    !inside && sig && /\) \{$/ && !/=/ { inside = 1; start = sig }
    inside && /^}/ { print FNR - start + 1, FILENAME ":" start; inside = 0; sig = 0 }' "$@"
}

# "headers file": how many headers of the repository each source reaches; one that is reached by two paths counts once.
reached() {
  local file
  for file in $(git ls-files 'src/*.c'); do
    echo "$(gcc -std=c11 -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -Iinclude -MM "$file" 2>/dev/null | tr ' \\' '\n\n' |
      grep -E '\.(h|def)$' | xargs -r realpath --relative-to=. | grep -E '^(src|include)/' | sort -u | wc -l) $file"
  done
}

# Comment lines for a line of code.
comments() {
  awk '{ line = $0; sub(/^[ \t]+/, "", line) }
    line == "" { next }
    open { c++; if (line ~ /\*\//) open = 0; next }
    line ~ /^\/\// { c++; next }
    line ~ /^\/\*/ { c++; if (line !~ /\*\//) open = 1; next }
    { n++ }
    END { printf "%.2f", c / (n ? n : 1) }' "$@"
}

# "name object" of each writable static of the library's objects; tables that only the loader writes (.data.rel.ro) do not count.
statics() {
  find "$HK_BUILD/src" -name '*.o' -not -path '*/perf/*' -not -path '*/tools/*' 2>/dev/null | while IFS= read -r object; do
    objdump -t "$object" | awk -v o="${object#"$HK_BUILD"/}" 'NF > 4 && $(NF - 2) ~ /^\.t?(data|bss)$/ && / O / { print $NF, o }'
  done
}

# Functions that a public header declares, and how many of them follow a comment.
documented() { # header
  awk '/\*\/[ \t]*$/ { doc = FNR } /^NCCL_DECLARE_|^[A-Za-z].*(nccl|hocket)[A-Za-z]+\(/ { n++; if (doc == FNR - 1) d++ } END { print d + 0, n + 0 }' "$1"
}

# "members file name" of each struct, those of structs inside it included; a line of two members counts as one. Files *_abi.h repeat
# structs of other libraries, and are left out.
structs() {
  awk 'FNR == 1 { inside = 0 }
    FILENAME ~ /_abi\.h$/ { next }
    /^(typedef )?struct [a-zA-Z_]+ \{/ { inside = 1; members = 0; name = $2 == "struct" ? $3 : $2 }
    inside && /;/ && !/^}/ && !/^ *\*|^ *\/\*/ { members++ }
    inside && /^}/ { print members, FILENAME, name; inside = 0 }' "$@" | sort -rn
}
# Places that read the parameter table, which src/base/param.c is.
parameters() { grep -HoE 'hk_param_(int|str)\(HK_P_|hk_settings_now\(\)' "$@" | grep -vc '^src/base/param\.'; }
circles() { python3 -B scripts/circles.py "$HK_BUILD/src" 99 2>/dev/null | awk 'NR == 1 { print $1 == "" || $0 ~ /no circle/ ? 0 : $1 }'; }

row() { printf '| %-44s | %-18s | %-18s | %-28s |\n' "$@"; }
both() { # title command models
  row "$1" "$($2 $src)" "$($2 $tests)" "$3"
}
count() { printf '%d / %d' $# "$(cat "$@" | wc -l)"; }
file_lines() { wc -l "$@" | awk '$2 != "total" { print $1 }' | spread | awk '{ print $1 " / " $3 }'; }
function_lines() { functions "$@" | spread | tr ' ' '/' | sed 's,/, / ,g'; }
long_lines() { awk 'length($0) > 120 { n++; if (length($0) > m) m = length($0) } END { printf "%d (longest %d)", n, m }' "$@"; }

src=$(sources src) tests=$(git ls-files 'tests/*.c' 'tests/*.h' 'tests/*.cu')
heads=$(reached)
row "" src tests models
row --- --- --- ---
both "files / lines" count ""
both "file lines, median / max" file_lines "<= 250 / 600"
both "function lines, median / p99 / max" function_lines "liburing 7 / 55 / 88"
row "headers of the repository reached, median / max" "$(cut -d ' ' -f 1 <<<"$heads" | spread | awk '{ print $1 " / " $3 }')" "" "MSCCL++ 20"
row "sources that reach over 20" "$(awk '$1 > 20' <<<"$heads" | wc -l) of $(wc -l <<<"$heads")" "" "5%"
both "lines over 120 columns" long_lines 0
row "writable statics" "$(statics | wc -l) in $(statics | cut -d ' ' -f 2 | sort -u | wc -l) objects" "" "table and log"
row "files of the largest circle of calls" "$(circles)" "" "4"
row "members of largest struct, without *_abi.h; over 30" "$(structs $src | awk 'NR == 1 { m = $1 } $1 > 30 { n++ } END { print m "; " n + 0 }')" "" "30; 0"
row "places that read the parameter table" "$(parameters $src)" "" "20"
for header in include/nccl.h include/hocket.h; do
  row "functions of ${header#include/} with a docstring" "$(documented $header | sed 's/ / of /')" "" all
done
both "comment lines per code line" comments ".11 to .34"
echo
echo "The longest functions:"
functions $src | sort -rn | head -n 5 | sed 's/^/  /'
echo "The longest files:"
wc -l $src | sort -rn | sed -n 2,6p
echo "The largest structs:"
structs $src | head -n 8 | sed 's/^/  /'
echo "What reaches most headers:"
sort -rn <<<"$heads" | head -n 5 | sed 's/^/  /'
[ -d "$HK_BUILD/src" ] || echo "Writable statics are counted in $HK_BUILD, which is not built: make lib"
