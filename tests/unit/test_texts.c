/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What messages say of calls and of ranks, word by word. */
#include "../../src/base/status.h"
#include "../../src/boot/activity.h"
#include "../../src/program/operation.h"
#include "../../src/program/program.h"
#include "../support/suite.h"

static const struct {
  hk_operation o;
  const char *text;
} operations[] = {
    {{.coll = HK_ALLREDUCE, .count = 1000, .dtype = HK_F32, .redop = HK_SUM}, "AllReduce(1000 x float, sum)"},
    {{.coll = HK_ALLREDUCE, .count = 1, .dtype = HK_BF16, .redop = HK_AVG | HK_REDOP_INVARIANT},
     "AllReduce(1 x bfloat16, avg, batch-invariant)"},
    {{.coll = HK_REDUCE, .count = 2, .dtype = HK_E5M2, .redop = HK_PREMULSUM, .root = 7},
     "Reduce(2 x f8e5m2, premulsum, root 7)"},
    {{.coll = HK_BROADCAST, .count = 0, .dtype = HK_U64, .redop = HK_MAX}, "Broadcast(0 x uint64, root 0)"},
    {{.coll = HK_ALLGATHER, .count = 9, .dtype = HK_DTYPE_COUNT, .root = 3}, "AllGather(9 x unknown type)"},
    {{.coll = HK_ALLREDUCE, .count = 1, .redop = HK_REDOP_COUNT}, "AllReduce(1 x int8, unknown operator)"},
    {{.coll = HK_ALLTOALLV, .count = 5, .dtype = HK_I32, .root = 3}, "AlltoAllv(int32)"},
    {{.coll = HK_ALLGATHERV, .count = 5, .dtype = HK_I32, .root = 0x1a2b}, "AllGatherv(5 x int32, counts 00001a2b)"},
    {{.coll = HK_SENDRECV, .p2p = HK_P2P_SEND, .count = 5, .root = 3}, "Send to(5 x int8, rank 3)"},
    {{.coll = HK_SENDRECV, .p2p = HK_P2P_RECV, .count = 5, .root = 3}, "Recv from(5 x int8, rank 3)"},
    {{.coll = HK_SENDRECV, .p2p = HK_P2P_PUT, .count = 5, .root = 3}, "PutSignal to(5 x int8, rank 3)"},
    {{.coll = HK_SENDRECV, .p2p = HK_P2P_WAIT, .count = 2, .root = 3}, "WaitSignal(2 signals, rank 3)"},
};

TEST_LOOP(calls, HK_ARRAY_LENGTH(operations)) {
  char text[160], cut[12];
  hk_operation_describe(&operations[_i].o, text, sizeof text);
  ck_assert_str_eq(text, operations[_i].text);
  hk_operation_describe(&operations[_i].o, cut, sizeof cut);
  ck_assert(!strncmp(text, cut, sizeof cut - 1) && strlen(cut) == sizeof cut - 1);
}

#define CALL .coll = HK_BROADCAST, .count = 4, .root = 1, .waits_for = -1
static const struct {
  hk_activity a;
  const char *text;
} ranks[] = {
    {{CALL, .sequence = 3, .phase = HK_PHASE_OPERATION}, "is in Broadcast(4 x int8, root 1), operation 3"},
    {{CALL, .sequence = 3, .phase = HK_PHASE_OPERATION, .phase_ms = 9949},
     "is in Broadcast(4 x int8, root 1), operation 3, for 9.9 s"},
    {{CALL, .sequence = 3, .phase = HK_PHASE_OPERATION, .phase_ms = 10000},
     "is in Broadcast(4 x int8, root 1), operation 3, for 10 s"},
    {{.coll = HK_BROADCAST, .sequence = 1, .phase = HK_PHASE_OPERATION, .phase_ms = 1, .waits_for = 0},
     "is in Broadcast(0 x int8, root 0), operation 1, for 0.0 s, and waits for rank 0 itself"},
    {{CALL, .phase = HK_PHASE_INIT}, "is in the init of the communicator"},
    {{CALL, .phase = HK_PHASE_GROW, .sequence = 3},
     "is in ncclCommGrow, after Broadcast(4 x int8, root 1), operation 3"},
    {{CALL}, "runs outside of this communicator's calls, and has begun no operation of it yet"},
    {{CALL, .sequence = 3},
     "runs outside of this communicator's calls; the newest was Broadcast(4 x int8, root 1), operation 3"},
    {{CALL, .phase = HK_PHASE_COUNT},
     "runs outside of this communicator's calls, and has begun no operation of it yet"},
    {{CALL, .phase = HK_PHASE_OPERATION}, "is in no operation"},
};

TEST_LOOP(answers, HK_ARRAY_LENGTH(ranks)) {
  char text[480];
  hk_activity_describe(&ranks[_i].a, HK_PRESENCE_ANSWERS, text, sizeof text);
  ck_assert_str_eq(text, ranks[_i].text);
}

TEST(silent_ranks) {
  static const char *const begins[] = {[HK_PRESENCE_STOPPED] = "does not answer, though its host accepts connections",
                                       [HK_PRESENCE_LEFT] = "has left the communicator",
                                       [HK_PRESENCE_GONE] = "is gone: its process has ended",
                                       [HK_PRESENCE_UNREACHABLE] = "cannot be reached: its host does not answer",
                                       [HK_PRESENCE_UNKNOWN] = "cannot be asked"};
  for (int p = HK_PRESENCE_STOPPED; p <= HK_PRESENCE_UNKNOWN; p++) {
    char text[480];
    hk_activity_describe(&ranks[0].a, (hk_presence)p, text, sizeof text);
    ck_assert_msg(!strncmp(text, begins[p], strlen(begins[p])), "%s", text);
  }
}

int main(void) { return suite_main("texts"); }
