/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What a rank shows of itself to ranks that wait for it (src/failure/watch.c). The communicator has only its state, its
 * status page and its counters. */
#include "../../src/base/wait.h"
#include "../../src/boot/activity.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/failure/publish.h"
#include "../../src/failure/watch.h"
#include "../../src/run/run.h"
#include "../../src/transport/status_page.h"
#include "../support/suite.h"

static struct ncclComm c; /* each test has a process of its own */
static const hk_call sum = {.count = 1000, .coll = HK_ALLREDUCE, .dtype = HK_F32, .redop = HK_MAX, .root = 3};

static void setup(void) {
  static _Alignas(HK_CACHE_LINE) hk_status_page page;
  static hk_meter meter;
  pthread_mutex_init(&c.health.lock, NULL);
  c.order.page = &page;
  c.order.meter = &meter;
}

static hk_activity shown(void) {
  hk_activity a;
  memset(&a, 0xa5, sizeof a);
  hk_watch_report(&c, &a);
  return a;
}

static void begin(const hk_call *call) {
  c.order.sequence++;
  hk_watch_publish(&c, call, hk_call_signature(call));
}

static void check_call(const hk_activity *a, const hk_call *call, uint64_t sequence) {
  ck_assert_uint_eq(a->sequence, sequence);
  ck_assert_uint_eq(a->count, call->count);
  ck_assert(a->coll == call->coll && a->dtype == call->dtype && a->redop == call->redop && a->root == call->root);
}

TEST(phases) {
  hk_activity a = shown();
  ck_assert(a.phase == HK_PHASE_IDLE && a.sequence == 0 && a.waits_for == -1 && a.moves == 0 && a.signature == 0);
  begin(&sum);
  a = shown();
  ck_assert_int_eq(a.phase, HK_PHASE_OPERATION);
  check_call(&a, &sum, 1);
  ck_assert_uint_eq(a.signature, hk_call_signature(&sum));
  atomic_store(&c.health.finalized, true);
  ck_assert_int_eq(shown().phase, HK_PHASE_OPERATION);
  hk_watch_over(&c);
  ck_assert_int_eq(shown().phase, HK_PHASE_FINALIZE);
  atomic_store(&c.health.finalized, false);
  a = shown();
  ck_assert_int_eq(a.phase, HK_PHASE_IDLE);
  check_call(&a, &sum, 1); /* its last call is still known */
  atomic_store(&c.order.page->phase, HK_PHASE_DESTROY);
  ck_assert_int_eq(shown().phase, HK_PHASE_DESTROY);
  begin(&sum);
  ck_assert_int_eq(shown().phase, HK_PHASE_DESTROY);
  atomic_store(&c.health.progress, HK_IN_PROGRESS);
  ck_assert_int_eq(shown().phase, HK_PHASE_INIT);
}

/* What a stream's thread will run is shown as if it were over. */
TEST(enqueued) {
  const hk_call send = {.coll = HK_SENDRECV, .p2p = HK_P2P_SEND, .dtype = HK_F64, .count = 5, .root = 1};
  for (int traceable = 0; traceable < 2; traceable++) {
    hk_watch_enqueued(&c, &sum, traceable);
    hk_activity a = shown();
    ck_assert_int_eq(a.phase, HK_PHASE_IDLE);
    check_call(&a, &sum, (uint64_t)traceable + 1);
    ck_assert_uint_eq(a.signature, traceable ? hk_call_signature(&sum) : 0);
  }
  hk_watch_enqueued(&c, &send, true);
  hk_activity a = shown();
  ck_assert(a.phase == HK_PHASE_IDLE && a.moves == 40);
  check_call(&a, &sum, 2);
}

/* Whom it waits for counts in the newest operation, or in a transfer after it. */
TEST(waits) {
  begin(&sum);
  begin(&sum);
  for (uint64_t of = 1; of <= 3; of++) {
    atomic_store(&c.order.page->waits, of << 32 | 8);
    atomic_store(&c.order.page->since_ns, hk_now_ns() - 5000000000u);
    hk_activity a = shown();
    ck_assert_int_eq(a.waits_for, of == 2 ? 7 : -1);
    if (of == 2) ck_assert(a.phase_ms >= 5000 && a.phase_ms < 65000);
    if (of != 2) ck_assert_uint_eq(a.phase_ms, 0);
  }
  atomic_store(&c.order.page->waits, (uint64_t)2 << 32); /* for no rank that it knows */
  ck_assert_int_eq(shown().waits_for, -1);
  ck_assert_uint_ge(shown().phase_ms, 5000);
  hk_watch_over(&c);
  ck_assert_uint_eq(shown().phase_ms, 0);
}

TEST(transfers) {
  static const struct {
    uint64_t count, shown;
  } counts[] = {{0, 0},
                {100, 100},
                {((uint64_t)1 << 36) - 2, ((uint64_t)1 << 36) - 2},
                {((uint64_t)1 << 36) - 1, ((uint64_t)1 << 36) - 1},
                {(uint64_t)1 << 36, ((uint64_t)1 << 36) - 1},
                {UINT64_MAX, ((uint64_t)1 << 36) - 1}};
  static const int peers[] = {0, 5, 0xfffff};
  for (int p2p = HK_P2P_SEND; p2p <= HK_P2P_WAIT; p2p++)
    for (size_t i = 0; i < HK_ARRAY_LENGTH(counts); i++)
      for (size_t k = 0; k < HK_ARRAY_LENGTH(peers); k++) {
        const hk_call call = {
            .coll = HK_SENDRECV, .p2p = (uint8_t)p2p, .dtype = HK_E5M2 - 4, .root = peers[k], .count = counts[i].count};
        hk_watch_transfer(&c, &call);
        hk_activity a = shown();
        ck_assert(a.phase == HK_PHASE_OPERATION && a.coll == HK_SENDRECV && a.p2p == p2p && a.dtype == call.dtype);
        ck_assert(a.root == peers[k] && a.count == counts[i].shown && a.waits_for == -1);
        ck_assert_uint_eq(a.moves, counts[i].shown * hk_dtype_size((hk_dtype)call.dtype));
        hk_watch_transfer(&c, NULL);
        a = shown();
        ck_assert(a.phase == HK_PHASE_IDLE && a.p2p == 0);
        ck_assert_uint_eq(a.moves, counts[i].shown * hk_dtype_size((hk_dtype)call.dtype));
      }
  /* A collective under way is shown first. */
  const hk_call send = {.coll = HK_SENDRECV, .p2p = HK_P2P_SEND, .dtype = HK_I8, .count = 9};
  hk_watch_transfer(&c, &send);
  begin(&sum);
  hk_activity a = shown();
  check_call(&a, &sum, 1);
  ck_assert_uint_eq(a.moves, 9);
}

/* The signatures of the last operations, and of none that never was or is too long ago. */
TEST(past) {
  enum {
    OPERATIONS = HK_ACTIVITY_PAST + 5,
    KNOWN = HK_STATUS_PAGE_ENTRIES - 1 /* the next one's entry is never read */
  };
  uint32_t signatures[OPERATIONS + 1] = {0};
  for (uint64_t n = 1; n <= OPERATIONS; n++) {
    hk_call call = sum;
    call.count = n;
    signatures[n] = hk_call_signature(&call);
    begin(&call);
    hk_activity a = shown();
    for (uint64_t k = 0; k <= n + 1; k++) {
      bool known = k >= 1 && k <= n && n - k < KNOWN;
      ck_assert_msg(hk_watch_signature(&a, k) == (known ? signatures[k] : 0), "%d of %d", (int)k, (int)n);
    }
    for (uint64_t i = 0; i < HK_ACTIVITY_PAST; i++)
      ck_assert_uint_eq(a.past[i], i + 1 < n && i + 1 < KNOWN ? signatures[n - 1 - i] : 0);
  }
}

TEST(words) {
  char text[160];
  c.options.rma_signals = 3;
  hk_call wait = {.comm = &c, .coll = HK_SENDRECV, .p2p = HK_P2P_WAIT, .count = 2, .root = 1, .signal = 7};
  hk_watch_describe(NULL, text, sizeof text);
  ck_assert_str_eq(text, "no operation");
  hk_watch_describe(&wait, text, sizeof text);
  ck_assert_ptr_nonnull(strstr(text, "signal 1 of context 2"));
  wait.p2p = HK_P2P_RECV;
  hk_watch_describe(&wait, text, sizeof text);
  ck_assert_ptr_null(strstr(text, "context"));
}

int main(void) { return suite_main("watch", .setup = setup); }
