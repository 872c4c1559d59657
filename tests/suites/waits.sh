#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Everything in src/ that waits does so through src/base/wait.h, so that it sees aborts, the death of peers, the watchdog and
# deadlines.  This finds calls that block and are not on the list below, and lines of the list that nothing matches any more.
set -u
cd "$(dirname "$0")/../.." || exit 1

# file: what the line has, and why it may wait there
exceptions() {
  cat <<'LIST'
src/base/service.c: epoll_wait(            the service thread sleeps until something happens: no one waits for it
src/base/service.c: pthread_join(          after `stop`: the thread ends with the callback under way, and callbacks do not block
src/base/service.c: pthread_cond_wait(     until a callback is over, and callbacks do not block
src/run/stream.c: pthread_cond_wait(&s->work    a stream's own thread, without work
src/run/stream.c: pthread_cond_timedwait(&s->work    the same: a nap
src/run/stream.c: pthread_cond_wait(&s->progress    the stream's operations end, each by waits of its own that see aborts
src/run/stream.c: pthread_cond_timedwait(&s->progress    the same, until the time that the caller gave
src/run/stream.c: pthread_join(        after `stop`: as above
src/comm/jobs.c: pthread_join(          inits of a group: their waits see aborts and have deadlines
src/comm/tasks.c: pthread_join(          what all ranks do together: the same
src/failure/watch.c: pthread_join(         an inquiry: its questions take seconds at most
src/boot/lost.c: pthread_join(     a question to a listener: it has a deadline of 0.7 s
src/ops/collect.c: pthread_join(   questions to listeners: together they have a deadline of 1.2 s
src/ops/ras.c: pthread_join(       after `stop`, at which all of the thread's waits look
src/transport/net/ib/ib_control.c: pthread_join(   after `stop`, at which the thread looks, as its dialling does
src/transport/relay_server.c: pthread_join(    after `stop`, at which the thread's loop and its dialling look
src/gpu/proxy.c: pthread_join(     after `stop`, at which the proxy's loop looks, and 2 s at most for its last packets
src/transport/shm/shm_socket.c: LOOK_MS        20 ms between two looks, then the helper
src/transport/net/socket/socket.c: epoll_wait(    the network's sleep in hk_wire_pause, for the time that the helper gives
src/transport/net/socket/socket_thread.c: pthread_cond_wait(&t->posted    a thread without a job
src/transport/net/socket/socket_thread.c: pthread_join(    after `stop`, without a job: jobs do not block
src/transport/net/plugin/plugin.c: nanosleep(     a plugin's sleep in hk_wire_pause, of NAP_NS
src/transport/net/plugin/plugin_thread.c: pthread_cond_wait(&t->asked    the plugin's thread, without a call to make
src/transport/net/plugin/plugin_thread.c: pthread_join(    after `stop`, when all of its calls have returned
src/transport/net/ib/ib_progress.c: poll(fds, n, 1)    the card's sleep in hk_wire_pause, of 1 ms
LIST
}

calls='\<(pthread_cond_(timed|clock)?wait|p?poll|epoll_p?wait2?|nanosleep|clock_nanosleep|usleep|sleep|sched_yield|sem_(timed|clock)?wait|p?select|pthread_join|pthread_(timed|clock)join_np|pthread_barrier_wait|pause|sigsuspend|sigwait|sigwaitinfo|sigtimedwait|waitpid)\(|FUTEX_WAIT'
found=$(mktemp) || exit 1
trap 'rm -f "$found"' EXIT
# Not: members of structures, comments, and polls that do not block.
find src \( -name '*.c' -o -name '*.h' \) ! -path 'src/perf/*' ! -path 'src/tools/*' ! -path 'src/base/wait.[ch]' -print0 |
  LC_ALL=C sort -z | xargs -0 grep -nE "$calls" | grep -vE -- '->(sleep|poll|pause|select)\(|^[^:]*:[0-9]*: *(/?\*|//)|poll\([^;]*, 0\)' > "$found"

bad=0
while IFS= read -r line; do
  [ -n "$line" ] || continue
  file=${line%%:*} rest=${line#*: }
  what=${rest%%  *}
  if ! grep -F "$file:" "$found" | grep -qF "$what"; then
    echo "tests/suites/waits.sh: the list has \"$file: $what\", which is there no more"
    bad=1
  fi
  grep -vF "$what" "$found" > "$found.rest"
  { cat "$found.rest"; grep -F "$what" "$found" | grep -vF "$file:"; } > "$found.left"
  mv "$found.left" "$found"
  rm -f "$found.rest"
done < <(exceptions)
if [ -s "$found" ]; then
  cat "$found"
  echo "these calls block without src/base/wait.h: use hk_wait_pause, hk_wait_fd, hk_wait_poll, hk_wait_nap or hk_wait_cond"
  bad=1
fi
[ $bad = 0 ] && echo "no call blocks without src/base/wait.h but for $(exceptions | wc -l) with a reason"
exit $bad
