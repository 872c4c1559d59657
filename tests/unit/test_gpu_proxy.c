/* SPDX-License-Identifier: Apache-2.0 */
/* The proxy of GPU links alone: the test plays the kernels on a device that is ordinary memory, and the network. */
#include <dirent.h>
#include <limits.h>
#include "../support/gpu_proxy.h"
#include "../support/suite.h"

/* Each state of a sender, one slot. */
TEST(sender_states) {
  begin(w, HOST);
  hk_gpu_proxy_link l = look(w, true);
  ck_assert(l.waits == HK_PROXY_WAITS_KERNEL && l.peer == PEER && l.channel == 3 && l.credits == SLOTS && l.done == 0);
  send_slot(w, 0, 64);
  UNTIL(look(w, true).done == 1);
  l = look(w, true);
  ck_assert(l.waits == HK_PROXY_WAITS_PEER && l.head == 0 && l.credits == SLOTS - 1);
  check_text(w, true, "sends to rank 1, channel 3: ready, 1 slots done, head 0, 3 credits");
  check_text(w, true, "waits for the peer to give slots back");
  char text[400], who[16];
  hk_gpu_proxy_report(w->proxy, who, sizeof who, text, sizeof text);
  ck_assert_msg(strstr(text, "; it sends to rank 1") == text && !strstr(text, "receives"), "%s", text);
  atomic_store(&w->net.takes, 1);
  UNTIL(look(w, true).waits == HK_PROXY_WAITS_KERNEL);
  l = look(w, true);
  ck_assert(l.head == 1 && l.credits == SLOTS && (l.word >> 32) == 0);
}

/* Each state of a receiver, one slot. */
TEST(receiver_states) {
  char who[16], text[400];
  begin(w, HOST);
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_NOTHING);
  hk_gpu_proxy_report(w->proxy, who, sizeof who, text, sizeof text);
  ck_assert_str_eq(who, "");
  leave_note(&w->recv, 0, 1);
  UNTIL((hk_gpu_proxy_report(w->proxy, who, sizeof who, text, sizeof text), who[0]));
  ck_assert_str_eq(who, "1");
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_PEER);
  check_text(w, false,
             "receives from rank 1, channel 3: ready, 0 slots done, head 0, 4 credits, word 0:00000000, note 1");
  check_text(w, false, "waits for the peer's next slot");
  atomic_store(&w->net.gives, 1);
  UNTIL(has_slot(w, 0));
  UNTIL(look(w, false).done == 1);
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_KERNEL);
  check_text(w, false, "waits for the kernel to give slots back");
  give_back(w, 0);
  ck_assert_int_eq(look(w, false).waits, HK_PROXY_WAITS_NOTHING);
}

/* Many slots in both directions, in order, with their data, wherever that is. */
TEST_LOOP(stream, MEMORIES) {
  enum { N = 5 * SLOTS + 1 };
  begin(w, (memory)_i);
  UNTIL(atomic_load(&w->net.settled)); /* a slot sent before would be in the memory that is taken back */
  atomic_store(&w->net.takes, N);
  atomic_store(&w->net.gives, N);
  for (uint64_t k = 0; k < N; k++) {
    UNTIL(has_credit(w, k));
    send_slot(w, k, k % 2 ? 64 : HK_SLOT_INLINE);
    leave_note(&w->recv, k, (uint32_t)k + 1);
    UNTIL(has_slot(w, k));
    for (int i = 0; i < 64; i++) ck_assert_int_eq(data_of(&w->recv, k)[i], (char)(k + 1));
    give_back(w, k);
  }
  UNTIL(atomic_load(&w->net.taken) == N);
  for (uint64_t k = 0; k < N; k++) {
    ck_assert_uint_eq(w->net.bytes[k], k % 2 ? 64 : HK_SLOT_INLINE);
    ck_assert_uint_eq(w->net.signature[k], SIGNATURE);
    for (int i = 0; i < HK_SLOT_INLINE; i++) ck_assert_int_eq(w->net.data[k][i], (char)(k + 1));
  }
  ck_assert_int_eq(atomic_load(&copies), _i == GPU_TAKEN_BACK ? 2 * N : 0);
  end_proxy();
  ck_assert_int_eq(atomic_load(&w->failed), HK_OK);
}

/* A word that is not the next slot's moves nothing. */
TEST(old_word) {
  begin(w, HOST);
  atomic_store(&w->net.takes, 8);
  __atomic_store_n(word_of(&w->send, 0), UINT64_C(5) << 32 | SIGNATURE, __ATOMIC_RELEASE);
  send_slot(w, 1, 64); /* slot 2 before slot 1 */
  leave_note(&w->recv, 0, 7);
  atomic_store(&w->net.gives, 1);
  UNTIL(has_slot(w, 0)); /* the proxy has looked at all links by now */
  ck_assert_int_eq(atomic_load(&w->net.taken), 0);
  ck_assert_int_eq(look(w, true).done, 0);
  send_slot(w, 0, 64);
  UNTIL(atomic_load(&w->net.taken) == 2);
}

TEST(connecting) {
  w->net.connecting = true;
  begin(w, HOST);
  ck_assert_int_eq(look(w, true).waits, HK_PROXY_WAITS_CONNECTION);
  check_text(w, true, "connecting");
  check_text(w, false, "waits for the connection");
}

/* The end waits until the network has all that the kernels have sent. */
static void *take_later(void *arg) {
  UNTIL(look(w, true).done == 2);
  atomic_store(&w->net.takes, 2);
  return arg;
}
TEST(ends_drained) {
  pthread_t thread;
  begin(w, HOST);
  send_slot(w, 0, 64);
  send_slot(w, 1, 64);
  ck_assert_int_eq(pthread_create(&thread, NULL, take_later, NULL), 0);
  pthread_join(thread, NULL);
  end_proxy();
  ck_assert_int_eq(atomic_load(&w->net.taken), 2);
}

/* A proxy that sleeps, as all launches have ended, is woken by the next one; without launches nothing is watched. */
TEST(sleeps) {
  atomic_store(&w->over, 1);
  atomic_store(&w->net.takes, 4);
  begin(w, HOST);
  for (uint64_t k = 0; k < 4; k++) {
    send_slot(w, k, 64);
    hk_gpu_proxy_wake(w->proxy, false);
    UNTIL(atomic_load(&w->net.taken) == k + 1);
  }
  const uint64_t until = hk_now_ns() + UINT64_C(300000000);
  UNTIL(hk_now_ns() > until);
  ck_assert_int_eq(atomic_load(&w->checks), 0);
}

/* How often the proxy's thread has gone to sleep so far; a yield is no sleep. */
static long sleeps_so_far(void) {
  char path[300], line[128] = "";
  long count = -1;
  DIR *threads = opendir("/proc/self/task");
  ck_assert_ptr_nonnull(threads);
  for (struct dirent *d; count < 0 && (d = readdir(threads));) {
    snprintf(path, sizeof path, "/proc/self/task/%.20s/status", d->d_name);
    FILE *f = fopen(path, "re");
    bool proxy = f && fgets(line, sizeof line, f) && strstr(line, "hocket-proxy");
    while (proxy && count < 0 && fgets(line, sizeof line, f))
      (void)sscanf(line, "voluntary_ctxt_switches: %ld", &count);
    if (f) fclose(f);
  }
  closedir(threads);
  ck_assert_int_ge(count, 0);
  return count;
}

/* While a launch runs, its next slot does not wait for a proxy that sleeps. A test that is stopped for a tenth of a
 * second sees a sleep all the same: the best of several looks counts. */
TEST(stays_awake_while_a_launch_runs) {
  long least = LONG_MAX;
  atomic_store(&w->net.takes, 20);
  begin(w, HOST);
  for (uint64_t k = 0; k < 20 && least > 0; k++) {
    send_slot(w, k, 64);
    UNTIL(atomic_load(&w->net.taken) == k + 1 && has_credit(w, k));
    const uint64_t from = hk_now_ns() + UINT64_C(2000000), until = from + UINT64_C(20000000);
    UNTIL(hk_now_ns() > from);
    long before = sleeps_so_far();
    UNTIL(hk_now_ns() > until);
    long count = sleeps_so_far() - before;
    if (count < least) least = count;
  }
  ck_assert_int_eq(least, 0);
}

/* A graph is launched without a call: once one was captured, the end of all launches no longer lets it sleep long. */
TEST(looks_on_for_graphs) {
  atomic_store(&w->over, 1);
  begin(w, HOST);
  hk_gpu_proxy_wake(w->proxy, true);
  int checks = atomic_load(&w->checks);
  UNTIL(atomic_load(&w->checks) >= checks + 2); /* by the same thread: what it asked before is answered */
  int asked = atomic_load(&w->asked);
  UNTIL(atomic_load(&w->checks) >= checks + 5);
  ck_assert_int_eq(atomic_load(&w->asked), asked);
}

/* While launches run without a slot the watchdog looks, and may end it. */
TEST(watched) {
  begin(w, HOST);
  UNTIL(atomic_load(&w->checks) >= 2);
  ck_assert_int_eq(atomic_load(&w->failed), HK_OK);
  atomic_store(&w->refuse, 1);
  UNTIL(atomic_load(&w->failed));
  ck_assert_int_eq(atomic_load(&w->failed), HK_ERR_REMOTE);
}

/* What ends a proxy is reported: the network, a length that no slot has. */
TEST_LOOP(fails, 3) {
  begin(w, HOST);
  if (_i == 2)
    post_lines(&w->send, 0, HK_GPU_LL_NET_MAX + 1);
  else if (_i)
    send_slot(w, 0, SLOT_BYTES + 1);
  else
    atomic_store(&w->net.fails, 1);
  UNTIL(atomic_load(&w->failed));
  ck_assert_int_eq(atomic_load(&w->failed), _i ? HK_ERR_INTERNAL : HK_ERR_REMOTE);
}

/* Other work is done although no launch runs, by a proxy without links, too. Its check may end the thread, as its steps
 * may; without a failure the thread ends when the work is quiet. */
typedef struct other_work {
  _Atomic(int) steps, checks, asked, fails, refuse;
} other_work;
static hk_status work_step(void *arg, bool *moved) {
  other_work *o = arg;
  *moved = atomic_fetch_add(&o->steps, 1) < 10;
  return atomic_load(&o->fails) ? HK_FAIL(HK_ERR_SYSTEM, "the work fails") : HK_OK;
}
static hk_status work_check(void *arg) {
  other_work *o = arg;
  atomic_fetch_add(&o->checks, 1);
  return atomic_load(&o->refuse) ? HK_FAIL(HK_ERR_REMOTE, "its check ends it") : HK_OK;
}
static bool work_quiet(void *arg) { return atomic_fetch_add(&((other_work *)arg)->asked, 1) == 3; }

TEST_LOOP(does_other_work, 4) {
  other_work o = {.steps = 0};
  const hk_gpu_proxy_work work = {.step = work_step, .check = work_check, .quiet = work_quiet, .arg = &o};
  atomic_store(&w->over, 1);
  begin(w, HOST);
  if (_i == 3) { /* no links */
    const hk_gpu_proxy_env e = {.env = &w->env, .device = &w->device, .wait = &w->wait, .failed = failed, .arg = w};
    hk_gpu_proxy_end(w->proxy, false);
    ck_assert_int_eq(hk_gpu_proxy_new(&e, &w->proxy), HK_OK);
  }
  ck_assert_int_eq(hk_gpu_proxy_serve(w->proxy, &work), HK_OK);
  UNTIL(atomic_load(&o.steps) > 20 && atomic_load(&o.checks) >= 2);
  ck_assert_int_eq(atomic_load(&o.asked) + atomic_load(&w->failed), 0);
  if (_i == 1) atomic_store(&o.fails, 1);
  if (_i == 2) atomic_store(&o.refuse, 1);
  if (_i == 1 || _i == 2) UNTIL(atomic_load(&w->failed) == (_i == 1 ? HK_ERR_SYSTEM : HK_ERR_REMOTE));
  end_proxy();
  ck_assert_int_eq(atomic_load(&o.asked), _i == 1 || _i == 2 ? 0 : 4);
}

/* A failure elsewhere ends it, whatever is still to be sent. */
TEST(ends_with_failure) {
  begin(w, HOST);
  send_slot(w, 0, 64);
  UNTIL(look(w, true).done == 1);
  atomic_store(&w->failure, HK_ERR_REMOTE);
  end_proxy();
  ck_assert_int_eq(atomic_load(&w->net.taken), 0);
}

int main(void) { return suite_main("gpu_proxy", .setup = setup, .teardown = teardown, .timeout = 60); }
