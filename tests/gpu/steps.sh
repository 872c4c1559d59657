# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# Steps of session.sh: commands with a limit, one line each.  What hangs is described once and ended with all of its processes.
# It needs what a CUDA image has: bash, coreutils, grep, sed, awk, setsid.
#   HK_GPU_BUILD=build/gpu   lib and bin
#   HK_GPU_SECONDS=420       nothing is started later, and nothing runs longer
#   HK_GPU_LARGEST=64K       caps the sizes of the perf programs, and their repeats at 20 (an emulated GPU)
#   OUT=DIR                  summary.txt, and log.txt with the whole output of each step (default: HK_GPU_BUILD)
#   ONLY=TEXT                the steps with this text in their names
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
build=${HK_GPU_BUILD:-build/gpu} seconds=${HK_GPU_SECONDS:-420} out=${OUT:-${HK_GPU_BUILD:-build/gpu}}
step_output=$(mktemp) && trap 'rm -f "$step_output"' EXIT
passed=0 failed=0 skipped=0 stage_hangs=0 steps=0 described=

say() { printf '%s\n' "$@" | tee -a "$out/summary.txt"; }
left() { echo $((seconds - SECONDS)); }
verdict() { # PASS|FAIL|SKIP TEXT
  case $1 in PASS) passed=$((passed + 1)) ;; FAIL) failed=$((failed + 1)) ;; SKIP) skipped=$((skipped + 1)) ;; esac
  say "$1  $2"
}
# The processes of the present step, those in other sessions and groups too (torchrun's workers): each has the step's mark.
step_processes() { grep -lszxF "HK_GPU_STEP=$$.$steps" /proc/[0-9]*/environ | cut -d / -f 3; }
# Threads with what they wait for, and, where debuggers are, stacks and kernels (gdb ignores TERM).  What each rank waits for is in its own report.
step_describe() {
  local pid task
  for pid in $(step_processes | head -n 3); do
    echo "process $pid: $(tr '\0' ' ' <"/proc/$pid/cmdline" | cut -c 1-120)"
    for task in "/proc/$pid/task"/*; do
      echo "  $(cat "$task/comm" 2>/dev/null) in $(cat "$task/wchan" 2>/dev/null)"
    done | sort | uniq -c
    if command -v gdb >/dev/null; then
      timeout -s KILL 3 gdb -p "$pid" -batch -ex 'set pagination off' -ex 'thread apply all backtrace 12' 2>/dev/null | grep -a '^Thread\|^#'
    fi
  done
  if command -v cuda-gdb >/dev/null && pid=$(step_processes | tail -n 1) && [ -n "$pid" ]; then
    timeout -s KILL 8 cuda-gdb -p "$pid" -batch -ex 'info cuda kernels' -ex 'info cuda blocks' 2>/dev/null | tail -n 40
  fi
}
# TERM for what saves its output, and KILL a second later.  A stopped process gets its TERM when it goes on.
step_end() {
  local signal pids tries=0
  for signal in TERM CONT KILL; do
    while pids=$(step_processes) && [ -n "$pids" ]; do
      # shellcheck disable=SC2086 # a list
      kill -$signal $pids 2>/dev/null
      if [ $signal != CONT ] || [ $((tries += 1)) -gt 10 ]; then break; fi
      sleep 0.1
    done
  done
}
# Runs a command with its output in $step_output; 124: it was not over in time.
step_run() { # LIMIT COMMAND...
  local limit=$1 pid clock first code
  shift
  HK_GPU_STEP=$$.$steps setsid "$@" >"$step_output" 2>&1 </dev/null &
  pid=$!
  sleep "$limit" &
  clock=$!
  wait -n -p first $pid $clock
  code=$?
  if [ "$first" = "$clock" ]; then
    [ -n "$described" ] || described=$(step_describe 2>&1)
    code=124
  fi
  { kill $clock; step_end; wait $pid $clock; } 2>/dev/null
  return $code
}
# step NAME LIMIT COMMAND...: 0 is a pass, 77 a skip whose reason is the last line; 2: it was not tried, because time is over.
# Two hangs end a stage, three the session (session.sh): a fault of the whole must not take all of the time.
step() {
  local name=$1 limit=$2 from=$EPOCHREALTIME code took
  shift 2
  [[ $name == *"${ONLY:-}"* ]] || return 0
  [ "$(left)" -gt 3 ] || { verdict SKIP "$name: no time is left"; return 2; }
  [ "$stage_hangs" -lt "${may_hang:-2}" ] || { verdict SKIP "$name: two steps of this stage hang"; return 2; }
  [ "$limit" -lt "$(left)" ] || limit=$(left)
  steps=$((steps + 1))
  step_run "$limit" "$@"
  code=$?
  took=$(awk -v a="$from" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", b - a }')
  { echo "=== $name: $*"; cat "$step_output"; } >>"$out/log.txt"
  if [ $code = 124 ]; then
    stage_hangs=$((stage_hangs + 1))
    [ "$described" = said ] || printf '%s\n' "--- the processes when their time was over" "$described" >>"$out/log.txt"
    described=said
  fi
  case $code in
    0) verdict PASS "$name ($took)$(step_times)"
      while read -r line; do verdict SKIP "$name: ${line#SKIP: }"; done < <(grep -a '^SKIP: ' "$step_output") ;;
    77) verdict SKIP "$name: $(tail -n 1 "$step_output" | sed 's/^SKIP: //')" ;;
    *)
      verdict FAIL "$name ($took): $([ $code = 124 ] && echo "hangs, ended after $limit s" || echo "exit code $code")"
      { grep -a 'WARN\|rror' "$step_output" | tail -n 5; tail -n 3 "$step_output"; } | cut -c 1-300 | awk '!seen[$0]++' | sed 's/^/      /' |
        tee -a "$out/summary.txt" ;;
  esac
  return $code
}
# Of a perf program's table: the sizes and their microseconds.
step_times() {
  awk '/^ *[0-9]+ +[0-9]+ +[a-z]/ { n++; if (n <= 8) u = u " " $1 ":" $6 } END { if (n) print "; " n " sizes, us" u }' "$step_output"
}
perf() { # NAME LIMIT PROGRAM ARGUMENTS...
  local name=$1 limit=$2 program=$3 most argument option="" arguments=()
  shift 3
  most=$([ -z "${HK_GPU_LARGEST:-}" ] || numfmt --from=iec "$HK_GPU_LARGEST")
  for argument; do
    case ${most:+$option} in
      -[be]) [ "$(numfmt --from=iec "$argument")" -le "$most" ] || argument=$most ;;
      -n) [ "$argument" -le 20 ] || argument=20 ;;
      -G) [ "$argument" -le 4 ] || argument=4 ;;
    esac
    arguments+=("$argument")
    option=$argument
  done
  step "$name" "$limit" "$build/bin/${program}_perf" "${arguments[@]}"
}
