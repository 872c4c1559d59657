/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that do not match (src/failure/mismatch.c): the histories of three ranks are written onto their boards, and
 * rank 0 is given a message that does not fit. Which rank it blames, with which facts.
 * check: waits notsan */
#include "../../src/boot/activity.h"
#include "../../src/core/call.h"
#include "../../src/core/comm.h"
#include "../../src/failure/failure.h"
#include "../../src/failure/mismatch.h"
#include "../../src/failure/publish.h"
#include "../../src/failure/watch.h"
#include "../../src/kernels/exec.h"
#include "../../src/program/cursor.h"
#include "../../src/run/run.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { RANKS = 3, BAD_BYTES = 77, EXPECTED_BYTES = 99 };

/* Letters for calls: sums of 16 and 17 elements, broadcasts from ranks 0 and 1, alltoallv. */
static hk_call call_of(char letter) {
  hk_call c = {.count = 16, .coll = HK_ALLREDUCE, .dtype = HK_F32, .redop = HK_SUM};
  if (letter == 'T') c.count = 17;
  if (letter == '0' || letter == '1') c.coll = HK_BROADCAST, c.root = letter - '0';
  if (letter == 'V') c.coll = HK_ALLTOALLV, c.count = 0;
  return c;
}
static uint32_t signature_of(char letter, uint64_t operation) {
  const hk_call c = call_of(letter);
  return hk_signature_at(hk_call_signature(&c), operation);
}

typedef enum event_kind { SLOT, FOUND, LOOK, LOOK_BACK, MESSAGE, MESSAGE_OF_NONE, TRANSFER } event_kind;
typedef struct scene {
  const char *calls[RANKS]; /* "S*20": the call 20 times */
  event_kind kind;
  char other; /* the call, as operation 1, whose message came; 0: that of the call itself; '?': of none */
  bool pairs;
  size_t moves[RANKS]; /* TRANSFER: bytes of each rank's transfer */
  int guilty;          /* -1: nothing is wrong */
  ncclResult_t code;   /* 0: ncclInvalidUsage */
  const char *says[3];
} scene;

static const scene scenes[] = {
    {{"S", "T", "S"},
     .other = '?',
     .guilty = 1,
     .says = {"disagree about operation 1: rank 1 called AllReduce(17", "but ranks 0 and 2 called AllReduce(16"}},
    {{"ST", "SS", "ST"}, .other = '?', .guilty = 1, .says = {"disagree about operation 2: rank 1 called"}},
    {{"SS", "ST", "S"}, .other = '?', .guilty = 1, .says = {"rank 1 called AllReduce(17", "but rank 0 called"}},
    {{"0S", "1S", "0S"},
     .other = '1',
     .guilty = 1,
     .says = {"disagree about operation 1: rank 1 called Broadcast(16 x float, root 1), but rank 0 called", "root 0)"}},
    {{"SS", "SS", "SS"},
     .other = '?',
     .guilty = 1,
     .says = {"rank 0, in AllReduce(16", "found a message of rank 1 with 77 bytes"}},
    {{"SS", "SS", "SS"},
     .guilty = 1,
     .code = ncclInternalError,
     .says = {"rank 1 sent 77 bytes where 99 were expected"}},
    {{"SS", "S*20", "SS"},
     .other = '?',
     .guilty = 1,
     .says = {"rank 0 is in AllReduce(16", "operation 2, but rank 1 called something else",
              "its message has 77 bytes, 99 were"}},
    {{"V", "V", "V"},
     .pairs = true,
     .guilty = 1,
     .says = {"operation 1, rank 1 sends rank 0 5 elements of float, but rank 0 expects 7", "sendcounts[0] of rank 1",
              "recvcounts[1] of rank 0"}},
    {{"S", "S", "S"}, FOUND, .guilty = 1, .says = {"rank 0 is in AllReduce(16", "another rank called"}},
    {{"S", "S", "S"}, LOOK, .guilty = -1},
    {{"S", "", "T"}, LOOK, .guilty = 2, .says = {"rank 2 called AllReduce(17", "but rank 0 called"}},
    {{"SSSS", "SS", "SSSSS"}, LOOK_BACK, .guilty = -1},
    {{"STSS", "STSS", "SSSS"},
     LOOK_BACK,
     .guilty = 2,
     .says = {"disagree about operation 2: rank 2 called AllReduce(16", "but ranks 0 and 1 called AllReduce(17"}},
    {{"SSS", "SST", "SSS"}, MESSAGE, .guilty = 1, .says = {"disagree about operation 3: rank 1 called"}},
    {{"SSS", "SSS", "SSS"},
     MESSAGE,
     .guilty = 1,
     .says = {"rank 0 got a message of rank 1 that belongs to another call"}},
    {{"SSS", "SSS", "SSS"}, MESSAGE_OF_NONE, .guilty = 0, .says = {"rank 0 got a message of rank"}},
    {{"VV", "VV", "VV"}, MESSAGE, .guilty = 1, .says = {"rank 1 sends rank 0 another number of elements"}},
    {{"", "", ""},
     TRANSFER,
     .moves = {400, 200, 400},
     .guilty = 1,
     .says =
         {"rank 1 sends a message of another size (a piece of 77 bytes came) than the 400 bytes that rank 0 receives"}},
    {{"", "", ""},
     TRANSFER,
     .moves = {400, 200, 200},
     .guilty = 0,
     .says = {"rank 0, in Recv", "receives 400 bytes from rank 1", "a piece of 77 bytes came"}},
};

static pthread_barrier_t met;

static void write_history(ncclComm_t c, const char *calls, hk_call *last) {
  const int times = strchr(calls, '*') ? atoi(strchr(calls, '*') + 1) : (int)strlen(calls);
  for (int i = 0; i < times; i++) {
    *last = call_of(strchr(calls, '*') ? calls[0] : calls[i]);
    last->comm = c;
    c->order.sequence++;
    hk_watch_publish(c, last, hk_call_signature(last));
    hk_watch_over(c);
  }
}

/* True if something is wrong. */
static bool judge(const scene *s, ncclComm_t c, const hk_call *call) {
  const hk_launch launch = {.signature = hk_call_signature(call)};
  hk_exec x = {.launch = &launch,
               .signature = hk_signature_at(launch.signature, c->order.sequence),
               .bad_peer = 1,
               .bad_bytes = BAD_BYTES,
               .expected_bytes = EXPECTED_BYTES,
               .pairs = s->pairs,
               .expected_length = 28};
  x.bad_signature = !s->other ? x.signature : s->other == '?' ? 1 : signature_of(s->other, 1);
  if (s->pairs) x.bad_signature = x.signature ^ hk_length_mark(20);
  bool wrong = true;
  switch (s->kind) {
    case SLOT: hk_mismatch_slot(c, call, &x); break;
    case FOUND: hk_mismatch_found(c, call, 1); break;
    case LOOK:
      wrong = hk_mismatch_look(c); /* in no call */
      ck_assert(!wrong);
      c->order.current = call;
      c->order.exec = &x;
      wrong = hk_mismatch_look(c);
      c->order.current = NULL;
      c->order.exec = NULL;
      break;
    case LOOK_BACK: wrong = hk_mismatch_look_back(c); break;
    case MESSAGE: hk_mismatch_message(c, 1); break;
    case MESSAGE_OF_NONE: hk_mismatch_message(c, -1); break;
    case TRANSFER: hk_mismatch_transfer(c, call, s->moves[0], BAD_BYTES); break;
  }
  return wrong;
}

static int play(ncclComm_t c, int rank, int n, void *arg) {
  const scene *s = arg;
  hk_call last = {.comm = c};
  int faults = 0;
  (void)n;
  write_history(c, s->calls[rank], &last);
  if (s->kind == TRANSFER) {
    last = (hk_call){
        .comm = c, .coll = HK_SENDRECV, .p2p = HK_P2P_RECV, .dtype = HK_I8, .count = s->moves[rank], .root = 1};
    hk_watch_transfer(c, &last);
    hk_watch_transfer(c, NULL);
  }
  pthread_barrier_wait(&met);
  if (rank == 0) {
    const bool wrong = judge(s, c, &last);
    faults += RANK_IS(wrong == (s->guilty >= 0));
    if (wrong) {
      const ncclResult_t code = (ncclResult_t)hk_failure_resolve(c, NULL);
      const char *text = ncclGetLastError(c);
      faults += RANK_IS(code == (s->code ? s->code : ncclInvalidUsage)) + RANK_IS(c->health.cause->rank == s->guilty);
      for (int i = 0; i < 3 && s->says[i]; i++) {
        if (strstr(text, s->says[i])) continue;
        fprintf(stderr, "\"%s\" does not say \"%s\"\n", text, s->says[i]);
        faults++;
      }
    }
    faults += RANK_IS(wrong || atomic_load(&c->health.failure) == 0);
  }
  pthread_barrier_wait(&met);
  return faults;
}

TEST_LOOP(verdicts, HK_ARRAY_LENGTH(scenes)) {
  scene s = scenes[_i];
  pthread_barrier_init(&met, NULL, RANKS);
  ck_assert_int_eq(ranks_as_threads(RANKS, play, &s), 0);
}

int main(void) { return suite_main("mismatch", .timeout = 60); }
