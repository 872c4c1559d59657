/* SPDX-License-Identifier: Apache-2.0 */
/* check: notsan */
/* What the verifier must reject.  Each case edits the text of textbook programs, one mistake at a time, and says which
 * rank, lane and instruction the report must name, and in which words. */
#include "../support/changed.h"
#include "../support/golden.h"
#include "../support/prove_algorithms.h"
#include "../support/suite.h"
#include "../support/textbook.h"

#define GOLDEN "tests/golden/verdicts.txt"

typedef struct edit {
  int rank; /* -1: all */
  const char *find, *replace;
} edit;
typedef struct broken {
  const char *title, *base;
  int nranks;
  hk_verify_options options;
  edit edits[6];
  int rank, lane, instr; /* that the report must name; -1 where none applies */
  const char *says;      /* NULL: it is right, but near to what is wrong */
} broken;

#define PLAIN                                                                                                          \
  { .slots = 4, .waves = 1 }
#define IN_PLACE                                                                                                       \
  { .slots = 4, .waves = 1, .in_place = true }
#define TWO_WAVES                                                                                                      \
  { .slots = 4, .waves = 2 }

/* clang-format off */
static const broken cases[] = {
    /* ---- wrong data ---- */
    {"wrong block", "ring-allreduce", 4, PLAIN,
     {{3, "     6: out[b1] <- recv(2)[b1]", "     6: out[b2] <- recv(2)[b2]"}},
     3, 0, 6, "it receives block 2, but rank 2 lane 0 instruction 5, wave 0 iteration 1 sends block 1"},
    {"two blocks in a split instruction", "ring-allreduce", 4, PLAIN,
     {{1, "out[b3] <- recv(0)[b3]", "out[b2] <- recv(0)[b3]"}},
     1, 0, 6, "its operands name block 2 and block 3"},
    {"unequal strides in a split instruction", "ring-allreduce", 4, PLAIN,
     {{2, "[b2-1j] <- recv(1)[b2-1j]", "[b2-1j] <- recv(1)[b2-2j]"}},
     2, 0, 5, "its operands name block 1 and block 0"},
    {"another block by way of scratch", "ring-allreduce", 4, PLAIN,
     {{0, "scratch 0", "scratch 1"},
      {0, "     6: ", "     6: scratch[b0] <- recv(3)[b2]\n  7: out[b3] <- scratch[b0] + in[b3], final\n  8: "}},
     0, 0, 7, "its operands name block 3, but a source holds the sum of block 2 over all ranks, final"},
    {"wrong source rank", "ring-allgather", 3, PLAIN,
     {{2, "out[b1], send(0)[b1] <- recv(1)[b1]", "scratch[b0], out[b1] <- recv(1)[b1]\n  3: send(0)[b1] <- out[b2]"},
      {2, "scratch 0", "scratch 1"}},
     0, 0, 2, "it leaves in out[b1] rank 2's block 0, not rank 1's block 0"},
    {"wrong input block", "pairwise-alltoall", 3, PLAIN,
     {{1, "[b2+1j] <- in[b2+1j]", "[b2+1j] <- in[b0+1j]"}},
     0, 0, 3, "it leaves in out[b1] rank 1's block 1, not rank 1's block 0"},
    {"gathered into the wrong places", "flat-gather", 3, PLAIN,
     {{0, "out[b1] <- recv(1)", "out[b2] <- recv(1)"}, {0, "out[b2] <- recv(2)", "out[b1] <- recv(2)"}},
     0, 0, 2, "it leaves in out[b1] rank 2's block 0, not rank 1's block 0"},
    {"scattered wrongly", "flat-scatter", 3, PLAIN,
     {{0, "send(1)[b1] <- in[b1]", "send(1)[b1] <- in[b2]"}},
     1, 0, 0, "it leaves in out[b0] rank 0's block 2, not rank 0's block 1"},
    {"duplicate contribution", "oneshot-allreduce", 3, PLAIN,
     {{2, "out[b0] <- recv(0)[b0] + recv(1)[b0] + in[b0], final",
       "out[b0] <- in[b0] + recv(0)[b0] + recv(1)[b0]\n  2: out[b0] <- in[b0] + out[b0], final"}},
     2, 0, 2, "rank 2's contribution to block 0 comes in twice"},
    {"duplicate contribution of rank 0", "oneshot-allreduce", 2, PLAIN,
     {{0, "out[b0] <- in[b0] + recv(1)[b0], final",
       "out[b0] <- in[b0] + recv(1)[b0]\n  2: out[b0] <- in[b0] + out[b0], final"}},
     0, 0, 2, "rank 0's contribution to block 0 comes in twice"},
    {"missing contribution", "chain-reduce", 3, PLAIN,
     {{1, "     1: send(0)[b1] <- recv(2)[b1] + in[b1]", "     1: send(0)[b1] <- recv(2)[b1]"}},
     0, 1, 1, "it makes an incomplete value final: the sum of block 1 over 2 of 3 ranks, without 1"},
    {"missing contribution, not final", "chain-reduce", 3, PLAIN,
     {{1, "[b0] <- recv(2)[b0] + in[b0]", "[b0] <- recv(2)[b0]"}, {0, "in[b0], final", "in[b0]"}},
     0, 0, 0, "it leaves in out[b0] the sum of block 0 over 2 of 3 ranks, without 1, not the final sum of block 0 "
     "over all ranks"},
    {"missing final", "ring-reduce-scatter", 3, PLAIN,
     {{1, ", final", ""}},
     1, 0, 2, "it leaves in out[b0] the sum of block 1 over all ranks, not the final sum of block 1"},
    {"final twice", "ring-allreduce", 4, PLAIN,
     {{3, "out[b1] <- recv(2)[b1]", "out[b1] <- recv(2)[b1], final"}},
     3, 0, 6, "it makes a value final that is final already"},
    {"final too early", "ring-allreduce", 4, PLAIN,
     {{0, "send(1)[b0] <- in[b0]", "send(1)[b0] <- in[b0], final"}},
     0, 0, 0, "it makes an incomplete value final: rank 0's block 0"},
    {"a final value reduced", "ring-allreduce", 4, PLAIN,
     {{0, "out[b2] <- recv(3)[b2]", "out[b2] <- recv(3)[b2] + in[b2]"}},
     0, 0, 6, "it reduces a value that is final already: the sum of block 2 over all ranks, final"},
    {"no final for one rank alone", "oneshot-allreduce", 1, PLAIN,
     {{0, ", final", ""}},
     0, 0, 0, "it leaves in out[b0] rank 0's block 0, not the final sum"},
    {"reduction over different blocks", "ring-reduce-scatter", 3, PLAIN,
     {{0, "recv(2)[b1] + in[b1]", "recv(2)[b1] + in[b2]"}},
     0, 0, 1, "it reduces block 1 with block 2"},
    {"an output never written", "ring-allgather", 3, PLAIN,
     {{1, "out[b1], send(2)[b1]", "send(2)[b1]"}},
     1, -1, -1, "out[b1] of wave 0 holds nothing, not rank 1's block 0: no instruction writes it"},

    /* ---- wrong order and number of messages ---- */
    {"missing step", "ring-allreduce", 4, PLAIN,
     {{2, "     5:   out[b2-1j], send(3)[b2-1j] <- recv(1)[b2-1j]", "     5:   out[b2-1j] <- recv(1)[b2-1j]"}},
     3, 0, 5, "it waits for a slot from rank 2 lane 0, which has ended: a receive that no rank sends to"},
    {"extra step", "ring-allgather", 3, PLAIN,
     {{0, "     2: ", "     2: send(1)[b1] <- out[b0]\n   3: "}},
     0, 0, 2, "rank 1 never receives what it sends: 1 slots are left at the end"},
    {"send without receive", "flat-scatter", 3, PLAIN,
     {{2, "     0: out[b0] <- recv(0)[b2]\n", ""}},
     0, 0, 2, "rank 2 never receives what it sends: 1 slots are left"},
    {"send without receive, more than fits", "flat-broadcast", 2, {.slots = 2, .waves = 3},
     {{1, "     0: out[b0] <- recv(0)[b0]\n", ""}},
     0, 0, 0, "it waits for rank 1 lane 0, which has ended, to take one of the 2 slots sent to it: a send that "
     "no rank receives"},
    {"receive without send", "flat-gather", 3, PLAIN,
     {{2, "     0: send(0)[b2] <- in[b0]\n", ""}},
     0, 0, 2, "it waits for a slot from rank 2 lane 0, which has ended: a receive that no rank sends to"},
    {"crossed waits", "oneshot-allreduce", 2, PLAIN,
     {{-1, "     1: out", "  2: out"},
      {0, "     0: send(1)[b0] <- in[b0], copy", "     0: scratch[b0] <- recv(1)[b0]\n 1: send(1)[b0] <- in[b0]"},
      {1, "     0: send(0)[b0] <- in[b0], copy", "     0: scratch[b0] <- recv(0)[b0]\n 1: send(0)[b0] <- in[b0]"},
      {-1, "scratch 0", "scratch 1"}},
     0, 0, 0, "deadlock, a cycle of 2: it waits for a slot from rank 1 lane 0; rank 1 lane 0 instruction 0 waits for "
     "a slot from rank 0 lane 0"},
    {"waits of three in a circle", "ring-allgather", 3, PLAIN,
     {{0, "out[b0], send(1)[b0] <- in[b0]", "out[b2], send(1)[b2] <- recv(2)[b2]"},
      {1, "out[b1], send(2)[b1] <- in[b0]", "out[b0], send(2)[b0] <- recv(0)[b0]"},
      {2, "out[b2], send(0)[b2] <- in[b0]", "out[b1], send(0)[b1] <- recv(1)[b1]"}},
     0, 0, 0, "deadlock, a cycle of 3"},
    {"too deep for the slots", "ring-allreduce", 4, {.slots = 1, .waves = 1},
     {{0}},
     0, 0, 2, "deadlock, a cycle of 4: it waits for rank 1 lane 0 to take one of the 1 slots sent to it; rank 1 lane "
     "0 instruction 2 waits for rank 2"},
    {"lanes of two ranks in a cycle", "chain-reduce", 2, PLAIN,
     {{0, "  links: 0=recv(1)\n     0: ",
       "  links: 0=recv(1) 1=recv(1@5) 2=send(1@6)\n  0: none <- recv(1@5)[b0]\n  1: "},
      {0, "lane 1\n  links: 1=", "   2: send(1@6)[b0] <- none\nlane 1\n  links: 3="},
      {1, "  links: 1=send(0)\n     1: ",
       "  links: 1=send(0) 2=send(0@5) 3=recv(0@6)\n  1: none <- recv(0@6)[b0]\n  2: "},
      {1, "in[b1]\n", "in[b1]\n  3: send(0@5)[b0] <- none\n"}},
     0, 0, 0, "deadlock, a cycle of 2: it waits for a slot from rank 1 lane 1; rank 1 lane 1 instruction 1 waits for "
     "a slot from rank 0 lane 0"},
    /* ---- sums that the network makes ---- */
    {"a rank that adds nothing", "network-allreduce", 3, PLAIN,
     {{1, "     0: sum(2)[b0] <- in[b0], copy\n     1: ", "     0: "}},
     1, 0, 0, "deadlock, a cycle of 1: it waits for a slot from rank 1 lane 0"},
    {"a sum of an empty slot", "network-allreduce", 3, PLAIN,
     {{2, "sum(0)[b0] <- in[b0], copy", "sum(0)[b0] <- none"}},
     2, 0, 0, "the network adds up an empty slot: slot 0 of its links"},
    {"an incomplete sum", "network-allreduce", 4, PLAIN,
     {{0, "0=sum(1) 1=sum-recv(3)", "0=sum(1) 1=sum-recv(1)"}, {0, "sum-recv(3)", "sum-recv(1)"},
      {1, "0=sum(2) 1=sum-recv(0)", "0=sum(0) 1=sum-recv(0)"}, {1, "sum(2)", "sum(0)"},
      {2, "0=sum(3) 1=sum-recv(1)", "0=sum(3) 1=sum-recv(3)"}, {2, "sum-recv(1)", "sum-recv(3)"}},
     2, 0, 1, "link 1 receives the sum with rank 3 on channel 0: that rank has no link which sends on this channel"},
    {"a sum by reference to what it overwrites", "network-allreduce", 3, IN_PLACE,
     {{1, ", copy", ""}},
     1, 0, 1, "may still refer to it"},
    {"a sum sent to a plain receive", "network-allreduce", 2, PLAIN,
     {{1, "1=sum-recv(0)", "1=recv(0)"}, {1, "sum-recv(0)[b0]", "recv(0)[b0]"}},
     1, 0, 1, "one of the two ends is of a sum that the network makes, the other one is not"},
    {"blocks of a gather in another order", "network-allgather", 3, PLAIN,
     {{1, "out[b0] <- gather-recv(0)[b0]", "out[b1] <- gather-recv(0)[b1]"}},
     1, 0, 1, "it receives block 1, but rank 0 lane 0 instruction 0 sends block 0"},
    {"a gather that is not read to its end", "network-allgather", 2, PLAIN,
     {{1, "     2: out[b1] <- gather-recv(0)[b1]\n", ""}},
     0, 0, 0, "rank 1 never receives what it sends: 1 slots are left at the end"},
    {"a rank that gathers nothing", "network-allgather", 3, PLAIN,
     {{2, "     0: gather(0)[b2] <- in[b0], copy\n     1: ", "     0: "}},
     2, 0, 0, "deadlock, a cycle of 1: it waits for a slot from rank 2 lane 0"},
    {"sums for other ranks", "network-reduce-scatter", 3, PLAIN,
     {{1, "scatter(2)[b0] <- in[b0]", "scatter(2)[b1] <- in[b1]"}},
     2, 0, 2, "the network adds block 1 to block 0: round 0 of its links"},
    {"a round by reference", "network-reduce-scatter", 2, PLAIN,
     {{1, "scatter(0)[b0] <- in[b0], copy", "scatter(0)[b0] <- in[b0]"}},
     1, 0, 0, "what the network moves in rounds is no copy"},
    {"a scatter taken for a gather", "network-reduce-scatter", 2, PLAIN,
     {{1, "1=scatter-recv(0)", "1=gather-recv(0)"}, {1, "scatter-recv(0)[b1]", "gather-recv(0)[b1]"}},
     1, 0, 2, "one of the two ends is of a sum that the network makes, the other one is not"},
    {"data taken for an empty slot", "flat-broadcast", 2, PLAIN,
     {{1, "out[b0] <- recv(0)[b0]", "none <- recv(0)[b0]"}},
     1, 0, 0, "it throws away the data that rank 0 lane 0 instruction 0 sends"},
    {"an empty slot taken for data", "flat-gather", 2, PLAIN,
     {{1, "send(0)[b1] <- in[b0]", "send(0)[b1] <- none"}},
     0, 0, 1, "it wants data from rank 1, but rank 1 lane 0 instruction 0 sends an empty slot"},
    {"one link twice in an instruction", "flat-broadcast", 2, PLAIN,
     {{0, "send(1)[b0] <-", "send(1)[b0], send(1)[b0] <-"}},
     0, 0, 0, "it sends twice on the link to rank 1"},
    {"one receiving link twice in an instruction", "oneshot-allreduce", 2, PLAIN,
     {{0, "+ recv(1)[b0]", "+ recv(1)[b0] + recv(1)[b0]"}},
     0, 0, 1, "it receives twice from rank 1"},
    {"not every rank reads a multicast", "multicast-broadcast", 3, {.slots = 2, .waves = 1},
     {{2, "3 times", "2 times"}, {2, "     1:   out[b0+1j]", "  1: out[b0+1j]"}},
     0, 0, 1, "rank 2 never receives what it sends: 1 slots are left"},

    /* ---- wrong links ---- */
    {"wrong peer", "ring-allreduce", 4, PLAIN,
     {{1, "0=send(2)", "0=send(3)"}, {1, "send(2)", "send(3)"}},
     2, 0, 2, "link 1 receives from rank 1 on channel 0: that rank has no link which sends"},
    {"wrong peer to receive from", "ring-allgather", 4, PLAIN,
     {{1, "recv(0)", "recv(2)"}},
     0, 0, 0, "link 0 sends to rank 1 on channel 0: that rank has no link which receives"},
    {"another channel", "flat-gather", 3, PLAIN,
     {{2, "0=send(0)", "0=send(0@1)"}, {2, "send(0)", "send(0@1)"}},
     0, 0, 2, "link 1 receives from rank 2 on channel 0: that rank has no link which sends"},
    {"two links of a kind", "flat-broadcast", 2, PLAIN,
     {{0, "0=send(1)", "0=send(1) 1=send(1)"}},
     0, 0, -1, "link 1 sends to rank 1 on channel 0: the rank has a second link of this kind"},
    {"a multicast that a rank cannot read", "multicast-broadcast", 3, PLAIN,
     {{1, " 0=mcast-recv(0)", ""},
      {1, "     0: repeat the next 1, 3 times\n     1:   out[b0+1j] <- mcast-recv(0)[b0+1j]\n", ""}},
     0, 0, 1, "not every other rank has a link which receives it"},
    {"an impossible peer", "flat-broadcast", 2, PLAIN,
     {{0, "0=send(1)", "0=send(7)"}, {0, "send(1)", "send(7)"}},
     0, 0, -1, "link 0 is impossible: kind 0, peer 7 of 2"},
    {"the multicast of another rank", "multicast-broadcast", 3, PLAIN,
     {{0, "0=mcast(0)", "0=mcast(1)"}, {0, "mcast(0)", "mcast(1)"}},
     0, 0, -1, "link 0 is impossible: kind 2, peer 1 of 3"},
    {"its own multicast is received", "multicast-broadcast", 3, PLAIN,
     {{1, "0=mcast-recv(0)", "0=mcast-recv(1)"}, {1, "mcast-recv(0)", "mcast-recv(1)"}},
     1, 0, -1, "link 0 is impossible: kind 3, peer 1 of 3"},

    /* ---- hazards ---- */
    {"input overwritten while a slot may refer to it", "oneshot-allreduce", 3, IN_PLACE,
     {{1, ", copy", ""}},
     1, 0, 1, "it writes out[b0] while the slot that rank 1 lane 0 instruction 0 sent to rank 2 may still refer to "
     "it (in place"},
    {"input read after it was overwritten", "ring-allreduce", 4, IN_PLACE,
     {{2, "out[b3], send(3)[b3] <- recv(1)[b3] + in[b3], final",
       "out[b3], send(3)[b3] <- recv(1)[b3] + in[b3], final\n  4: scratch[b0] <- in[b3]"},
      {2, "scratch 0", "scratch 1"}},
     2, 0, 4, "it reads in[b3], which in place is out[b3] and was overwritten by rank 2 lane 0 instruction 3"},
    {"output as a buffer that is still sent from", "flat-gather", 3, PLAIN,
     {{-1, "scratch 0", "scratch 1"},
      {0, "     2: ", "     2: send(1)[b0] <- out[b0]\n  3: out[b0] <- in[b0]\n  4: "},
      {0, "links: 0=recv(1) 1=recv(2)", "links: 0=recv(1) 1=recv(2) 2=send(1)"},
      {1, "0=send(0)\n", "0=send(0) 1=recv(0)\n"}, {1, "in[b0]\n", "in[b0]\n  1: scratch[b0] <- recv(0)[b0]\n"}},
     0, 0, 3, "it writes out[b0] while the slot that rank 0 lane 0 instruction 2 sent to rank 1 may still refer to "
     "it: nothing shows"},
    {"output as a buffer of the last slot, with all slots in use", "flat-gather", 3, { .slots = 1, .waves = 1 },
     {{-1, "scratch 0", "scratch 1"},
      {0, "     2: ", "     2: send(1)[b0] <- out[b0]\n  3: send(1)[b0] <- out[b0]\n  4: out[b0] <- in[b0]\n  5: "},
      {0, "links: 0=recv(1) 1=recv(2)", "links: 0=recv(1) 1=recv(2) 2=send(1)"},
      {1, "0=send(0)\n", "0=send(0) 1=recv(0)\n"},
      {1, "in[b0]\n", "in[b0]\n  1: scratch[b0] <- recv(0)[b0]\n  2: scratch[b0] <- recv(0)[b0]\n"}},
     0, 0, 4, "it writes out[b0] while the slot that rank 0 lane 0 instruction 3 sent to rank 1 may still refer to "
     "it: nothing shows"},
    {"output as a buffer of the slot before: its credit has come back", "flat-gather", 3, { .slots = 1, .waves = 1 },
     {{-1, "scratch 0", "scratch 1"},
      {0, "     2: ", "     2: send(1)[b0] <- out[b0]\n  3: send(1)[b0] <- in[b0]\n  4: out[b0] <- in[b0]\n  5: "},
      {0, "links: 0=recv(1) 1=recv(2)", "links: 0=recv(1) 1=recv(2) 2=send(1)"},
      {1, "0=send(0)\n", "0=send(0) 1=recv(0)\n"},
      {1, "in[b0]\n", "in[b0]\n  1: scratch[b0] <- recv(0)[b0]\n  2: scratch[b0] <- recv(0)[b0]\n"}},
     -1, -1, -1, NULL},
    {"landing on input that is still read", "ring-allreduce", 2, IN_PLACE,
     {{0, "     1: out", "     1: send(1)[b0] <- in[b0], copy\n  2: out"},
      {1, "     2: out", "     2: scratch[b0] <- recv(0)[b0]\n  3: out"},
      {1, "scratch 0", "scratch 1"}},
     0, 0, 3, "what it receives into out[b0] may land there while rank 0 lane 0 instruction 1, or a slot that it sent, "
     "still reads it: rank 1 does not know better when it sends"},
    {"output read before it is written", "ring-allgather", 3, IN_PLACE,
     {{0, "send(1)[b0] <- in[b0]", "send(1)[b0] <- out[b0]"}},
     0, 0, 0, "it reads out[b0], which nothing has written yet"},
    {"a lane reads what another writes", "chain-reduce", 2, PLAIN,
     {{0, "     1: out[b1] <- recv(1)[b1] + in[b1], final",
       "     1: out[b1] <- recv(1)[b1] + in[b1], final\n  2: scratch[b0] <- out[b0]"},
      {0, "scratch 0", "scratch 1"}},
     0, 1, 2, "it reads out[b0], which rank 0 lane 0 instruction 0 wrote: no chain of slots orders the two lanes"},
    {"two lanes write one block", "chain-reduce", 2, PLAIN,
     {{0, "     1: out[b1] <- recv(1)[b1] + in[b1], final",
       "     1: out[b1] <- recv(1)[b1] + in[b1], final\n  2: out[b0] <- in[b0]"}},
     0, 1, 2, "it writes out[b0], which rank 0 lane 0 instruction 0 wrote: no chain"},
    {"a contribution twice by way of scratch", "chain-reduce", 2, TWO_WAVES,
     {{1, "scratch 0", "scratch 2"},
      {1, "     0: ", "  0: scratch[b1] <- in[b0]\n 1: scratch[b0] <- scratch[b1] + in[b0]\n 2: "}},
     1, 0, 1, "rank 1's contribution to block 0 comes in twice"},
    {"scratch hoped to be left by the wave before", "flat-gather", 2, TWO_WAVES,
     {{0, "scratch 0", "scratch 1"},
      {0, "     0: out[b0] <- in[b0]", "  0: out[b0] <- scratch[b0]\n  2: scratch[b0] <- in[b0]"}},
     0, 0, 0, "it reads scratch[b0], which nothing has written yet"},
    {"another lane's scratch", "chain-reduce", 2, PLAIN,
     {{1, "scratch 0", "scratch 1"}, {1, "     0: ", "  0: scratch[b0] <- in[b0]\n 1: "},
      {1, "<- in[b1]", "<- scratch[b0]"}},
     1, 1, 2, "it reads scratch[b0], which nothing has written yet"},

    /* ---- wrong form ---- */
    {"a block that is not there", "ring-allgather", 3, PLAIN,
     {{0, "out[b1] <- recv(2)[b1]", "out[b3] <- recv(2)[b1]"}},
     0, 0, 2, "out[b3] does not exist: there are 3"},
    {"scratch that is not there", "flat-scatter", 2, PLAIN,
     {{1, "out[b0]", "scratch[b0]"}},
     1, 0, 0, "scratch[b0] does not exist: there are 0"},
    {"a link that is not there", "flat-gather", 2, PLAIN,
     {{0, "recv(1)[b1]", "recv(link 4)[b1]"}},
     0, 0, 1, "link 4 does not exist: there are 1"},
    {"steps past the links", "pairwise-alltoall", 3, PLAIN,
     {{2, "2 times", "3 times"}},
     2, 0, 2, "the links 0 to 2 are not all of one kind"},
    {"steps past the last link", "pairwise-alltoall", 3, PLAIN,
     {{2, "recv(link 2+j)", "recv(link 3+j)"}},
     2, 0, 3, "link 4 does not exist: there are 4"},
    {"another lane's link", "chain-reduce", 2, PLAIN,
     {{0, "out[b1] <- recv(1)[b1]", "out[b1] <- recv(link 0)[b1]"}},
     0, 1, 1, "link 0 belongs to lane 0"},
    {"a receiving link as destination", "flat-gather", 2, PLAIN,
     {{0, "out[b1] <- recv(1)[b1]", "out[b1], recv(1)[b1] <- recv(1)[b1]"}},
     0, 0, 1, "link 0 from rank 1 is a destination but receives"},
    {"a sending link as source", "flat-broadcast", 2, PLAIN,
     {{0, "<- in[b0]", "<- send(1)[b0]"}},
     0, 0, 0, "link 0 to rank 1 is a source but sends"},
    /* ---- in the switch ---- */
    {"a switch only at the receiver", "oneshot-allreduce", 3, PLAIN,
     {{1, ", final", ", final, in switch"}},
     1, 0, 1, "it receives in the switch what rank 0 lane 0 instruction 0 sends outside it"},
    {"a switch only at the senders", "oneshot-allreduce", 3, PLAIN,
     {{-1, ", copy", ", copy, in switch"}, {0, ", final", ", final, in switch"}, {2, ", final", ", final, in switch"}},
     1, 0, 1, "it receives outside the switch what rank 0 lane 0 instruction 0 sends in it"},
    {"a switch between neighbours", "ring-reduce-scatter", 3, PLAIN,
     {{2, ", final", ", final, in switch"}},
     2, 0, 2, "it adds 2 sources in the switch, which adds those of all 3 ranks"},
    {"a partial sum into the switch", "oneshot-allreduce", 2, PLAIN,
     {{-1, ", copy", ", copy, in switch"}, {-1, ", final", ", final, in switch"}, {1, "scratch 0", "scratch 1"},
      {1, "recv(0)[b0] + in[b0]", "recv(0)[b0] + scratch[b0]"}},
     1, 0, 1, "source 1 is neither input nor a link from one rank"},
    {"a switch without a link", "oneshot-allreduce", 1, PLAIN,
     {{0, ", final", ", final, in switch"}},
     0, 0, 0, "it is in the switch, but uses no link"},
    {"two channels for the switch", "oneshot-allreduce", 3, PLAIN,
     {{-1, ", copy", ", copy, in switch"}, {-1, ", final", ", final, in switch"},
      {0, "=recv(2)", "=recv(2@1)"}, {0, "+ recv(2)", "+ recv(2@1)"}, {2, "=send(0)", "=send(0@1)"},
      {2, "     0: send(0)", "     0: send(0@1)"}},
     0, 0, 1, "its sources come on channels 0 and 1"},
    {"unequal slots for the switch", "oneshot-allreduce", 3, PLAIN,
     {{-1, ", copy", ", copy, in switch"}, {-1, ", final", ", final, in switch"},
      {0, "     0: ", "     0: send(1)[b0] <- none, in switch\n  1: "},
      {1, "     0: ", "     0: none <- recv(0)[b0], in switch\n  1: "}},
     1, 0, 2, "it adds in the switch slot 1 from rank 0 and slot 0 from rank 2"},
    {"in the switch once and outside once", "oneshot-allreduce", 3, PLAIN,
     {{-1, ", copy", ", copy, in switch"}, {-1, ", final", ", final, in switch"},
      {0, "     0: ", "     0: send(1)[b0] <- none\n  1: "}},
     0, 0, 1, "it sends in the switch on a link that earlier sent outside it"},
    {"the order of a switch's sum", "oneshot-allreduce", 3,
     {.slots = 4, .waves = 1, .orders = true, .least = HK_ORDER_EQUAL},
     {{-1, ", copy", ", copy, in switch"}, {-1, ", final", ", final, in switch"}},
     0, -1, -1, "a switch adds its sums, in an order that is not known"},
    {"two fresh sources", "oneshot-allreduce", 2, PLAIN,
     {{1, "recv(0)[b0] + in[b0]", "recv(0)[b0] + in[b0] + in[b0]"}},
     1, 0, 1, "two sources are fresh input"},
    {"the input is written", "flat-scatter", 2, PLAIN,
     {{1, "out[b0]", "in[b0]"}},
     1, 0, 0, "in[b0] is written: the input is only read"},
    {"an output that only the root has", "chain-reduce", 2, PLAIN,
     {{1, "     1: send(0)[b1]", "     1: out[b1], send(0)[b1]"}},
     1, 1, 1, "out[b1] is used, but only the root has an output"},
    {"an input that only the root has", "flat-broadcast", 2, PLAIN,
     {{1, "<- recv(0)[b0]", "<- in[b0]"}},
     1, 0, 0, "in[b0] is read, but only the root has an input"},
    {"a sum where nothing reduces", "flat-broadcast", 2, PLAIN,
     {{1, "<- recv(0)[b0]", "<- recv(0)[b0] + out[b0]"}},
     1, 0, 0, "it has 2 sources, but Broadcast does not reduce"},
    {"final where nothing reduces", "flat-broadcast", 2, PLAIN,
     {{1, "<- recv(0)[b0]", "<- recv(0)[b0], final"}},
     1, 0, 0, "it is final, but Broadcast does not reduce"},
    {"data without a source", "flat-gather", 2, PLAIN,
     {{0, "out[b0] <- in[b0]", "out[b0] <- none"}},
     0, 0, 0, "it has no source, so it can only send empty slots"},
    {"a source for nothing", "flat-gather", 2, PLAIN,
     {{0, "out[b0] <- in[b0]", "none <- in[b0]"}},
     0, 0, 0, "it has no destination, so it can only take empty slots"},
    {"no operands", "flat-gather", 2, PLAIN,
     {{0, "out[b0] <- in[b0]", "none <- none"}},
     0, 0, 0, "it has no operands"},
    {"one destination twice", "flat-gather", 2, PLAIN,
     {{0, "out[b0] <- in[b0]", "out[b0], out[b0] <- in[b0]"}},
     0, 0, 0, "one destination is there twice"},
    {"nothing but scratch in a split instruction", "ring-allreduce", 3, PLAIN,
     {{0, "scratch 0", "scratch 2"}, {0, "     2: ", " 2: scratch[b0] <- scratch[b1]\n  3: "}},
     0, 0, 2, "only scratch operands"},
    {"a stride outside a repeat", "flat-gather", 2, PLAIN,
     {{0, "out[b0] <- in[b0]", "out[b0+1j] <- in[b0]"}},
     0, 0, 0, "out[b0] has a stride outside a repeat"},
    {"a repeat in a repeat", "multicast-broadcast", 2, PLAIN,
     {{0, "     1: ", "     1: repeat the next 1, 2 times\n 2:"}},
     0, 0, 1, "a repeat inside a repeat"},
    {"a repeat past the end", "multicast-broadcast", 2, PLAIN,
     {{0, "the next 1", "the next 2"}},
     0, 0, 0, "a repeat of 2 instructions, 3 times, with 1 left in the lane"},
    {"a repeat of nothing", "multicast-broadcast", 2, PLAIN,
     {{0, "3 times", "0 times"}},
     0, 0, 0, "a repeat of 1 instructions, 0 times"},
    {"programs of different collectives", "ring-allreduce", 4, PLAIN,
     {{2, "AllReduce", "Broadcast"}, {2, "of 4, ", "of 4, root 0, "}},
     2, -1, -1, "its program is Broadcast over 4 ranks"},
    {"another root", "flat-gather", 3, PLAIN,
     {{2, "root 0", "root 2"}},
     2, -1, -1, "with root 2, rank 0's is Gather over 3 ranks with root 0"},
    {"another rank's program", "ring-allreduce", 4, PLAIN,
     {{2, "rank 2 of", "rank 1 of"}},
     2, -1, -1, "its program was built for rank 1"},
    {"another split", "ring-allreduce", 4, PLAIN,
     {{2, "split into 4", "split into 8"}},
     2, -1, -1, "its program has blocks 8 in, 8 out, 8 in all; there must be 4, 4, 4"},
};
/* clang-format on */

/* A copy of text with every `find` replaced. */
static char *replace_all(char *text, const edit *e, const char *title) {
  char *out = NULL;
  size_t size;
  FILE *f = open_memstream(&out, &size);
  const char *at = text, *hit;
  ck_assert_msg(strstr(text, e->find) != NULL, "%s: no \"%s\" in\n%s", title, e->find, text);
  while ((hit = strstr(at, e->find))) {
    fwrite(at, 1, (size_t)(hit - at), f);
    fputs(e->replace, f);
    at = hit + strlen(e->find);
  }
  fputs(at, f);
  fclose(f);
  free(text);
  return out;
}

static char *program_text(const hk_program *p) {
  char *text = NULL;
  size_t size;
  FILE *f = open_memstream(&text, &size);
  hk_program_dump(p, f);
  fclose(f);
  return text;
}

static hk_program *edited(hk_program *p, int rank, const broken *c) {
  char *text = program_text(p);
  for (size_t k = 0; k < HK_ARRAY_LENGTH(c->edits) && c->edits[k].find; k++)
    if (c->edits[k].rank == rank || c->edits[k].rank < 0) text = replace_all(text, &c->edits[k], c->title);
  hk_program_free(p);
  ck_assert_msg(hk_program_parse(text, &p) == HK_OK, "%s: %s in\n%s", c->title, hk_last_error(), text);
  free(text);
  return p;
}

TEST_LOOP(broken_is_rejected, HK_ARRAY_LENGTH(cases)) {
  const broken *c = &cases[_i];
  hk_program **p = textbook_build(textbook_find(c->base), c->nranks, 0);
  for (int r = 0; r < c->nranks; r++) p[r] = edited(p[r], r, c);
  hk_verify_report report;
  hk_status rc = hk_verify((const hk_program *const *)p, c->nranks, &c->options, &report);
  if (!c->says) {
    ck_assert_msg(rc == HK_OK, "%s: %s", c->title, report.message);
    programs_free(p, c->nranks);
    return;
  }
  ck_assert_msg(rc == HK_ERR_INTERNAL, "%s: not rejected", c->title);
  ck_assert_msg(strstr(report.message, c->says) != NULL, "%s: \"%s\" does not say \"%s\"", c->title, report.message,
                c->says);
  ck_assert_msg(report.rank == c->rank && report.lane == c->lane && report.instr == c->instr,
                "%s: rank %d lane %d instruction %d in \"%s\"", c->title, report.rank, report.lane, report.instr,
                report.message);
  /* The message itself names them too. */
  char where[80];
  int n = snprintf(where, sizeof where, " rank %d", c->rank);
  if (c->lane >= 0) n += snprintf(where + n, sizeof where - (size_t)n, " lane %d", c->lane);
  if (c->instr >= 0) snprintf(where + n, sizeof where - (size_t)n, " instruction %d (", c->instr);
  ck_assert_msg(strstr(report.message, where) != NULL, "%s: \"%s\" does not name \"%s\"", c->title, report.message,
                where);
  programs_free(p, c->nranks);
}

/* ---- any change ----
 * Each verdict on programs with one change, as a hash: its words, the place that it names, how far the run came. A
 * difference shows the words of the verdict; HOCKET_TEST_UPDATE=1 writes the file again. */

static const char *const words[] = {"in[",  "out[",   "scratch[", "send(",   "recv(",       "sum(",     "mcast(",
                                    "link", "gather", ", copy",   ", final", ", in switch", "+ in[b0]", "none <- ",
                                    ", ",   " + ",    "+j",       "+1j",     "-1j"};

static void verdict(hk_program *const *p, int nranks, uint64_t how, char *said) {
  hk_verify_options o = {.slots = 1 + (unsigned)(how % 3),
                         .waves = 1 + (unsigned)(how / 3 % 3),
                         .in_place = how / 9 % 2,
                         .orders = how / 18 % 2,
                         .least = (hk_order)(how / 36 % 4),
                         .lengths = how / 7 % 3};
  hk_verify_report r;
  hk_status rc = hk_verify((const hk_program *const *)p, nranks, &o, &r);
  snprintf(said, GOLDEN_TEXT, "%d at %d %d %d after %llu, %u, %d: %s", rc, r.rank, r.lane, r.instr,
           (unsigned long long)r.steps, r.sets, rc ? -1 : (int)r.order, r.message);
}

typedef struct subject {
  hk_program **p;
  int nranks;
} subject;

/* The k-th verdict: mostly on the programs with one more change in the text of one of them. */
static void say(void *arg, const char *name, unsigned k, char *said) {
  const subject *x = arg;
  uint64_t seed = golden_hash(k, name, strlen(name));
  if (k % 8 == 0) {
    verdict(x->p, x->nranks, seed, said);
    return;
  }
  int r = (int)random_below(&seed, (unsigned)x->nranks);
  char *text = program_text(x->p[r]), *other = changed(text, words, HK_ARRAY_LENGTH(words), &seed);
  hk_program *was = x->p[r];
  if (hk_program_parse(other, &x->p[r]) == HK_OK) {
    verdict(x->p, x->nranks, random_next(&seed), said);
    hk_program_free(x->p[r]);
  } else {
    snprintf(said, GOLDEN_TEXT, "%s", hk_last_error());
  }
  x->p[r] = was;
  free(text);
  free(other);
}

static void same_verdicts(golden *g, const char *group, const char *name, hk_program **p, int nranks) {
  golden_texts(g, group, name, 40, say, &(subject){p, nranks});
}

TEST_LOOP(verdicts_on_algorithms, prove_count()) {
  const hk_algorithm *a = hk_algorithms[_i];
  char name[100];
  snprintf(name, sizeof name, "%s|", a->name);
  golden g = golden_open(GOLDEN, name);
  for (int nranks = 2; nranks <= 5; nranks++) {
    hk_machine m = prove_machine(nranks);
    for (int c = 0; c < HK_COLL_COUNT; c++) {
      if (!hk_algorithm_supports(a, &m.team, (hk_coll)c)) continue;
      hk_program **p = prove_build(a, (hk_coll)c, nranks, hk_coll_has_root((hk_coll)c) ? nranks / 2 : 0);
      snprintf(name, sizeof name, "%s %s of %d", a->name, hk_coll_name((hk_coll)c), nranks);
      same_verdicts(&g, a->name, name, p, nranks);
      prove_free(p, nranks);
    }
  }
  golden_close(&g);
}

TEST(verdicts_on_textbook) {
  golden g = golden_open(GOLDEN, "textbook ");
  for (size_t k = 0; k <= textbook_count; k++) {
    const textbook_entry *e = k < textbook_count ? &textbook[k] : textbook_find("chain-reduce");
    int nranks = k < textbook_count ? 3 : 67; /* more than a word of a set has bits */
    hk_program **p = textbook_build(e, nranks, 0);
    char name[100], group[40];
    snprintf(name, sizeof name, "textbook %s of %d", e->name, nranks);
    snprintf(group, sizeof group, "textbook %zu", k / 12);
    same_verdicts(&g, group, name, p, nranks);
    programs_free(p, nranks);
  }
  golden_close(&g);
}

enum { RANDOM_PROGRAMS = 150 };
TEST(verdicts_on_random) {
  golden g = golden_open(GOLDEN, "random ");
  for (unsigned k = 0; k < RANDOM_PROGRAMS; k++) {
    randprog p;
    char name[100], group[40];
    randprog_make(&p, k, 0, -1);
    if (k % 3 == 1) (void)randprog_break(&p, k);
    if (k % 3 == 2) (void)randprog_shake(&p, k);
    snprintf(name, sizeof name, "random %u", k);
    snprintf(group, sizeof group, "random from %u", k / 15 * 15);
    same_verdicts(&g, group, name, p.programs, p.nranks);
    randprog_free(&p);
  }
  golden_close(&g);
}

int main(void) {
  setenv("NCCL_DEBUG", "NONE", 1); /* what is wrong with a text is no news */
  golden_clear(GOLDEN);
  return suite_main("verify-broken");
}
