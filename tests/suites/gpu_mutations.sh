#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The tests of the GPU kernels fail when a kernel is broken: each mutation below is made to a copy of the sources, and the
# tests that should notice are run with it.  A mutation that none notices survives: that is a hole in the tests, and fails.
# MUTATIONS=all (make mutations FILES=src/kernels/cuda) tries all and writes build/mutations/results; without it only
# those marked `quick`.  FROM=number MOST=number: so many, beginning with this one.  ONLY_MUTATION=text: by description.
# PATIENCE=number: on a slow or busy machine a test has so many times as long.
# check: timeout=150 long=suites
set -u
cd "$(dirname "$0")/../.." || exit 1
[ -e "$HK_BUILD/libsupport.a" ] || { echo "SKIP: the tests are not built"; exit 77; }
case $HK_BUILD in *-*) echo "SKIP: tried with the plain build only"; exit 77 ;; esac
report=/dev/null PATIENCE=${PATIENCE:-1}
[ "${MUTATIONS:-}" = all ] && mkdir -p build/mutations && report=build/mutations/results && : >$report
dir=$(mktemp -d) && trap 'rm -rf "$dir"' EXIT
mkdir -p "$dir/tests/unit" && cp -r src include "$dir" && cp -r tests/support tests/cudaemu "$dir/tests"
cp tests/unit/test_gpu_{exec,ll128,small}.c "$dir/tests/unit"
# In one process, so that the first kernel that hangs is the end of it.
export NCCL_DEBUG=NONE CK_VERBOSITY=silent CK_FORK=no TSAN_OPTIONS=halt_on_error=1

read -ra check_libs <<<"$(pkg-config --libs check)"
# program SOURCE FLAGS...: builds a unit test of the copy.
program() {
  local source=$1; shift
  cc -std=c11 -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -I"$dir/include" -w -O1 -g -fno-math-errno -pthread "$@" \
    -o "$dir/program" "$dir/tests/unit/$source.c" "$HK_BUILD/libsupport.a" "$HK_BUILD/libhocket-internal.a" \
    "${check_libs[@]}" -lm 2>"$dir/log"
}
# A process of a broken test that is left over would take time from the next.
cc -O1 -o "$dir/contain" scripts/contain.c || exit 1
run() { "$dir/contain" "$dir/tap" $(($1 * PATIENCE)) $(($1 * PATIENCE)) "${@:2}" >"$dir/out" 2>&1 </dev/null; } # seconds program
# try MODE: 0 where the tests fail, or hang, with the sources as they are now; 2: they do not compile.
try() {
  local source=test_gpu_exec
  case $1 in
    wide*) source=test_gpu_ll128 ;;
    small*) source=test_gpu_small ;;
  esac
  case $1 in
    exec | wide | small)
      program $source || return 2
      ! HOCKET_TEST_STUCK=$((5 * PATIENCE)) run 60 "$dir/program"
      ;;
    exec-races | wide-races | small-races)
      program $source -fsanitize=thread || return 2
      ! HOCKET_TEST_STUCK=$((20 * PATIENCE)) run 120 "$dir/program"
      ;;
    emulated | multicast | lines) # stores wait in buffers until something orders them; threads take turns
      local program=test_device
      [ "$1" = emulated ] || program=test_gpu_$1
      c++ -x c++ -std=c++17 -fno-exceptions -fno-rtti -DHK_CUDAEMU -D_GNU_SOURCE -I"$dir/tests/cudaemu" -fPIC -shared -w \
        -fvisibility=hidden -ffp-contract=off -O1 -o "$dir/kernels.so" "$dir/src/kernels/cuda/exec.cu" 2>"$dir/log" || return 2
      ! HOCKET_CUDA_IMAGE=$dir/kernels.so CUDAEMU_WEAK=1 CUDAEMU_SEED=3 CK_FORK=yes run 60 "$HK_BUILD/tests/$program"
      ;;
  esac
}

# The test that a mode runs.
test_of() { # mode
  case $1 in
    exec*) echo "test_gpu_exec${1#exec}" ;;
    wide*) echo "test_gpu_ll128${1#wide}" ;;
    small*) echo "test_gpu_small${1#small}" ;;
    emulated) echo test_device ;;
    multicast) echo test_gpu_multicast ;;
    lines) echo test_gpu_lines ;;
  esac
}

tried=0 survivors=0 stale=0 number=0
# mutate MODE QUICK FILE SED WHAT
mutate() {
  local mode=$1 quick=$2 file=src/kernels/cuda/$3 what=$5 rc begin=$SECONDS at
  [[ $3 == */* ]] && file=src/$3
  [ -n "${ONLY_MUTATION:-}" ] && [[ $5 != *$ONLY_MUTATION* ]] && return
  [ -z "${ONLY_MUTATION:-}" ] && [ "${MUTATIONS:-}" != all ] && [ "$quick" != quick ] && return
  [ $((++number)) -ge "${FROM:-1}" ] && [ $tried -lt "${MOST:-1000}" ] || return
  sed "$4" "$file" >"$dir/$file"
  at=$(cmp "$file" "$dir/$file" | sed 's/.* //')
  if [ -z "$at" ]; then
    echo "STALE     $file  $5: the line has changed; change the mutation too"
    stale=$((stale + 1))
    return
  fi
  tried=$((tried + 1))
  try "$mode"
  rc=$?
  case $rc in
    0) result noticed ;;
    2) echo "BROKEN    $file:$at  $5: does not compile:"; head -n 5 "$dir/log"; stale=$((stale + 1)) ;;
    *) result SURVIVED; survivors=$((survivors + 1)) ;;
  esac
  cp "$file" "$dir/$file"
}
# A line as scripts/mutations.sh writes it.
result() { # noticed or SURVIVED; the rest from mutate
  local by="no test"
  [ "$1" = noticed ] && by=$(test_of "$mode")
  printf '%-8s  %s:%s  %s  [%s, %d s]\n' "$1" "$file" "$at" "$what" "$by" $((SECONDS - begin)) >>"$dir/results"
  { [ "$1" = SURVIVED ] || [ "${MUTATIONS:-}" = all ]; } && tail -n 1 "$dir/results" | tee -a "$report"
}

# What is not broken must pass, or all would count as noticed; `make check` has run these tests already.
for mode in exec wide small emulated multicast lines; do
  [ "${MUTATIONS:-}" = all ] || break
  [[ $mode =~ ^(emulated|multicast|lines)$ ]] && { command -v c++ >/dev/null || continue; }
  if try $mode; then echo "the tests fail without a mutation ($mode):"; tail -n 5 "$dir/out" "$dir/log"; exit 1; fi
done

# Credits, slots and words.
mutate exec - wait.h 's/while (done >= head + k->nslots)/while (done >= head + k->nslots + 1)/' \
  "a sender overruns its receiver by a slot"
mutate exec - wait.h 's/if ((uint32_t)word == tag) return true;/return true;/' "a receiver takes another call's slot for its own"
mutate exec - exec.cu 's/(\*done + 1) << 32 | tag/(*done + 2) << 32 | tag/' "a word says the wrong number"
mutate exec quick exec.cu 's/  \*done += 1;/  *done += k < ndst;/' "a receiver misses a slot"
mutate exec-races - wait.h 's/while ((uint32_t)(word >> 32) != (uint32_t)(done + 1))/while (0)/' "a receiver does not wait for the word"
mutate exec-races - exec.cu 's/post_signal(link, link->head, \*done);/*link->head = *done;/' "a credit comes back without order"
mutate exec-races quick exec.cu 's/if (hk_warp_any(plain)) hk_fence();/hk_warp_any(plain);/' "words and heads are stored without a fence"
mutate exec-races - exec.cu 's/plain |= slot;/plain |= k < ndst \&\& slot;/' \
  "a head is stored without a fence"
mutate exec-races - exec.cu 's/post_signal(link, word_of(link, \*done), /*word_of(link, *done) = (/' "a word is stored without order"
mutate exec-races - wait.h 's/uint64_t word = hk_load_acquire(at);/uint64_t word = *at;/;s/word = hk_load_acquire(at);/word = *(volatile const uint64_t *)at;/' \
  "a word is read without order"
mutate emulated - exec.cu 's/if (hk_warp_any(plain)) hk_fence();.*/hk_warp_any(plain); hk_relax();/;s/if (hk_barrier_or(!here)) return false; .*//;s/^  hk_barrier();$//' \
  "a word overtakes its data"
mutate exec - wait.h 's/\*seen = least;/*seen = least + 1;/' "a sender remembers more credits than it has"
mutate exec - exec.cu 's/\*s->links\[k\].done = s->done\[k\];/;/' "counters of links that do not fit are not kept"
# Barriers between the threads of a block.
mutate exec-races - exec.cu 's/if (hk_barrier_or(!here)) return false; .*/if (!here) return false;/' "no barrier between the data and the signals"
mutate exec-races - exec.cu 's/hk_warp_barrier(); .*//' "no barrier behind the counters"
mutate exec-races - exec.cu 's/hk_barrier(); .* no thread reads the old.*//' "instructions are fetched over those that others still read"
mutate exec-races - exec.cu 's/if (hk_barrier_or((found \& FOUND_STOP) != 0)) return false;/if (found \& FOUND_STOP) return false;/' "data moves before the waits are over"
# What goes where.
mutate exec quick program/cursor.h 's/block \* s->block_bytes + c->offset;/block * s->block_bytes + c->offset % (3 * s->chunk);/' \
  "the fourth wave moves the wrong chunk"
mutate exec - program/cursor.h 's/c->offset = channel \* s->chunk;/c->offset = 0;/' "every channel begins with the first chunk"
mutate exec - program/cursor.h 's/return left < s->block_bytes ? left : s->block_bytes;/return s->block_bytes;/' "the last block is not clipped"
mutate exec - program/cursor.h 's/return left < s->chunk ? left : s->chunk;/return s->chunk;/' "the last chunk is not clipped"
mutate exec - program/cursor.h 's/hk_operand_link(o, c->iteration)/hk_operand_link(o, 0)/' "a repeat uses its first link only"
mutate exec - program/cursor.h 's/if (++c->iteration < c->count)/if (++c->iteration + 1 < c->count)/' "a repeat ends early"
mutate exec - move.h 's/hk_store(m->at\[k\] + 16 \* (i + j \* step), v\[j\])/hk_store(m->at[k] + 16 * (i + j * step), v[j ^ 1])/' "vectors in flight change places"
mutate exec - move.h 's/^    if (i < n) p\[i\] = /    p[i] = /' "odd ends are written too far"
mutate exec - move.h 's/part\[i\] >> down | part\[i + 1\] << up/part[i] >> down/' "misaligned words lose bytes"
# Lines.
mutate exec - exec.cu 's/hk_gpu_line_flag(done + 1, tag)/hk_gpu_line_flag(sends ? done + 1 : done, tag)/' "a receiver waits for the flag before"
mutate exec - exec.cu 's/  refresh_lines(link, done);//' "old flags stay when numbers come round"
mutate exec - move.h 's/if (!of_another_call(found, flag)) continue;/continue;/' "an LL line of another call is waited for"
mutate wide - wide.h 's/if (v\[j\].w\[2\] == flag \&\& v\[j\].w\[3\] != tag) {/if (0) {/' "an LL128 line of another call is waited for"
mutate exec - wait.h 's/polls % POLLS_BETWEEN_LOOKS == 0 \&\& came_in_lines/0 \&\& came_in_lines/' "lines that come where a word is expected are not seen"
mutate exec - move.h 's/line\[k\].w\[1\] == flag \&\& line\[k\].w\[3\] == flag/line[k].w[1] == flag/' "the second half of an LL line is not waited for"
mutate exec - move.h 's/if (n > 8) store_line/if (n > 9) store_line/' "a short LL line is not written"
mutate wide quick wide.h 's/line.w\[2\] = m->flag\[k\];/line.w[2] = m->flag[k] - (pair > 0);/' \
  "an LL128 line goes without its flag"
mutate wide-races - wide.h 's/if (!hk_warp_any(missing)) return true;/if (!missing) return true;/' "LL128 data is used before its flag"
mutate wide - wide.h 's/missing |= v\[j\]/missing = v[j]/' "only the last LL128 line in flight is waited for"
mutate wide - wide.h 's/: 0, left > 112 \* line}/: 0, left > 128 * line}/;s/left > 112 \* line/left > 128 * line/' "a short second LL128 line is not sent"
mutate wide - wide.h 's/224 + 8 \* line/224/' "both half vectors of a pair are the first"
mutate emulated - wide.h 's/+ 16 \* (hk_thread() % PAIR_THREADS)/+ 16 * (hk_thread() % PAIR_THREADS ^ 1)/' "eight threads have a line's pieces in another order"
# References.
mutate exec - exec.cu 's/if (l.owed \&\& !failed) await_owed(&l, s);//' "a kernel ends while others read its user's buffer"
mutate exec - exec.cu 's/ || (i->flags & HK_INSTR_COPY)) return s/) return s/' "what is soon overwritten goes by reference"
mutate exec - exec.cu 's/place += !s->refers\[j\]/place++/' "destinations do not close up round references"
mutate exec - exec.cu 's/return at + (uint64_t)stable.seen\[link->peer\]/return at + (uint64_t)stable.seen[0]/' "all receivers read where the first one sees it"
# Sums in the switch.
mutate exec - wait.h 's/i <= k->others/i < 1/' "a multicast sender waits for its first receiver only"
mutate multicast - exec.cu '/All of our part/,/add_in_switch/{/add_in_switch/!d}' "the switch adds up before a rank's own part is there"
mutate multicast - exec.cu 's/link->own + slot \* link->slot_bytes/link->own/' "a rank's own part always goes into the first slot"
mutate multicast - exec.cu 's/s->sum = link->data + slot \* link->slot_bytes;/s->sum = link->data + (slot ^ 1) * link->slot_bytes;/' "the switch adds up another slot"
mutate multicast - exec.cu 's/s->own.reducer.pre ? 0 : -1/-1/' "a rank's own part is not premultiplied"
mutate multicast - in_switch.h 's/if (s.divided) v/if (0) v/' "what the switch has added up is not divided"
mutate multicast - in_switch.h 's/const int what = multi_of(&m->reducer);/const int what = multi_of(\&m->reducer) % HK_MULTI_ADD_64;/' "the switch is asked for another sum"
mutate multicast - in_switch.h 's/hk_multi_store(m->at\[k\] + 16 \* at, v\[j\])/hk_multi_store(m->at[k] + 16 * at, v[0])/' "one vector of several goes everywhere"
mutate multicast - in_switch.h 's/load_pieces(from + 16 \* at, piece_of/load_pieces(from + 16 * i, piece_of/' "what goes everywhere is its first vector again"
mutate multicast - wait.h 's/i <= k->others; i += HK_WARP) {/i < k->others; i += HK_WARP) {/' "the last rank's part of the sum for all is not waited for"
mutate multicast - wait.h 's/while (done >= hk_load_acquire(k->head + i \* HK_GPU_HEAD_STRIDE) + k->nslots)/while (0)/' "what all read is written again before they have"
mutate multicast - move.h '/hk_multi_store_signal((uint64_t \*)(void \*)(p + 8)/d' "half of a line goes everywhere"
mutate multicast - exec.cu 's/ | (sends \&\& (link->multi \& HK_GPU_MULTI_DATA) ? EVERYWHERE : 0)//' "what goes everywhere is stored as for one"
# Arithmetic.
mutate exec - reduce.h 's/if ((int)k == s->fresh) premultiply/if (0) premultiply/' "nothing is premultiplied"
mutate exec - reduce.h 's/if (s->divided) divide/if (0) divide/' "nothing is divided"
mutate exec - number.h 's/ || (x) != (x))/)/' "a NaN is lost"
mutate exec - number.h 's/a\[i\] = widen(type, narrow(type, a\[i\]));/;/' "a product is not rounded to its type"
mutate exec - reduce.h 's/v\[0\] = load_plain(m->at\[s->src + k\]/v[0] = load_plain(m->at[s->src]/' "odd ends reduce the first source only"
# Ends.
mutate exec - move.h 's/return hk_load_relaxed(&state->abort) != 0;/return false;/' "an abort is not seen"
mutate exec - move.h 's/if (!got.here) return false;//' "what did not come before an abort is stored"
mutate wide - wide.h 's/if (!load_shares(\(.*\))) return false;/load_shares(\1);/' "what did not come in LL128 lines before an abort is stored"
mutate exec - exec.cu 's/if (hk_barrier_or(!here)) return false; .*/hk_barrier();/' "a slot that did not come whole is given back"
mutate exec - exec.cu 's/  if (transfer \&\& s->whole) l->at.offset = .*//' "a receive by one reference takes one slot's bytes"
mutate exec - exec.cu 's/l->at.offset ? tag : tag_of(w->signature, w->sizes.longest)/tag/' "a reference to a whole message is refused"
# Small messages.
mutate small - small.h 's/while (done >= head + w->nslots)/while (0)/' "a small message does not wait for its credit"
mutate small - small.h 's/line\[k\].w\[1\] == flag\[k\] \&\& line\[k\].w\[3\] == flag\[k\]/line[k].w[1] == flag[k]/' \
  "half of a small message's line is taken for all of it"
mutate small - small.h 's/if (!hk_barrier_or(!small_any(s)) \&\& has_end)/hk_barrier_or(!small_any(s)); if (has_end)/' \
  "a small message that did not come is given back"
mutate small-races - small.h 's/if (!hk_barrier_or(!small_any(s)) \&\& has_end)/if (small_any(s) \&\& has_end)/' \
  "a slot is given back while other threads read it"
mutate small - small.h 's/if (hk_gpu_lines_due(done + 1, w->nslots))/if (0)/' "a small message leaves old flags when numbers come round"
mutate small - small.h 's/if (s->move.reducer.pre) own =/if (0) own =/' "a small message's own part is not premultiplied"
mutate small - small.h 's/if (m->reducer.post) divide/if (0) divide/' "a small message's sum is not divided"
mutate small - small.h 's/v = small_line(w->in, w->bytes, i + hk_threads());/;/' "the second pass sends the first one's data"
mutate small - small.h 's/if (me < HK_GPU_SMALL_SOURCES) hk_store_signal(end.head, done + 1);//' "a small message gives no credit back"

# Lines over the network.
mutate lines - exec.cu 's/    else if (link->proxied)$/    else if (0)/' "the proxy does not hear of lines"
mutate lines - exec.cu 's/number ^ HK_GPU_IN_LINES, (uint32_t)bytes/number, (uint32_t)bytes/' "lines are posted as a slot"
mutate lines - link.h 's/k->proxied ? HK_GPU_LL_NET_MAX : HK_GPU_LL_MAX/HK_GPU_LL_MAX/' "a proxy's lines lie as another GPU's"
mutate lines - exec.cu 's/    if (lines != PLAIN && link->proxied) note_wait(link, done);.*//' "a kernel that polls lines does not say so"

echo "$tried mutations, $survivors survived, $stale do not apply"
[ $((survivors + stale)) = 0 ]
