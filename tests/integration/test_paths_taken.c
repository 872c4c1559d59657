/* SPDX-License-Identifier: Apache-2.0 */
/* Which way the data went: the results are right on the slow path too, so the flags that the last operation left in
 * the slots of links say whether a slot referred to the sender's memory (zero copy) or held a copy. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include "../../src/core/comm.h"
#include "../../src/core/links.h"
#include "../../src/decide/machine.h"
#include "../../src/run/plans.h"
#include "../../src/run/selection.h"
#include "../../src/transport/peer.h"
#include "../support/ranks.h"
#include "../support/suite.h"

enum { RANKS = 2, KIB = 1 << 10, MIB = 1 << 20 };

typedef enum share { NONE, ALL, SOME } share;
typedef struct path {
  const char *what;
  bool processes;
  hk_coll coll;
  size_t bytes; /* of a block */
  share referred;
} path;

static const path paths[] = {
    {"threads read each other's memory", false, HK_ALLGATHER, 64 * KIB, ALL},
    {"and what they will add to their own", false, HK_REDUCE_SCATTER, 64 * KIB, ALL},
    {"small messages are copied", false, HK_ALLGATHER, 8 * KIB, NONE},
    {"processes read each other's memory through the kernel", true, HK_ALLGATHER, 64 * KIB, ALL},
    {"but not what they will add", true, HK_REDUCE_SCATTER, 64 * KIB, NONE},
    {"they read the sum, and not what they will add", true, HK_ALLREDUCE, 256 * KIB, SOME},
    {"they do not read a sum that the caches do not hold", true, HK_ALLREDUCE, 4 * MIB, NONE},
    {"they read blocks that the caches do not hold", true, HK_ALLGATHER, 4 * MIB, ALL},
    {"threads read sums that the caches do not hold", false, HK_ALLREDUCE, 4 * MIB, ALL},
};

/* The slots of this rank's sends whose last use was a reference, or was not. */
static unsigned slots_with(ncclComm_t c, bool reference) {
  unsigned found = 0;
  for (int peer = 0; peer < c->nranks; peer++)
    for (int channel = 0; c->links->to[peer] && channel < HK_CHANNEL_COUNT; channel++) {
      const hk_wired_link *w = c->links->to[peer]->at[channel][HK_LINK_SEND];
      for (uint32_t s = 0; w && s <= w->link.mask && s < w->link.done; s++)
        found += ((w->link.slots[s].flags & HK_SLOT_REF) != 0) == reference;
    }
  return found;
}

static int run(ncclComm_t comm, int rank, int nranks, void *arg) {
  const path *p = arg;
  size_t count = p->bytes / sizeof(float), all = count * (size_t)nranks;
  bool sum = hk_coll_reduces(p->coll);
  float *in = malloc(all * sizeof *in), *out = malloc(all * sizeof *out);
  int faults = 0;
  for (size_t i = 0; i < all; i++) in[i] = (float)(rank + 1);
  if (p->coll == HK_ALLREDUCE)
    faults += RANK_CHECK(ncclAllReduce(in, out, all, ncclFloat, ncclSum, comm, NULL));
  else if (p->coll == HK_REDUCE_SCATTER)
    faults += RANK_CHECK(ncclReduceScatter(in, out, count, ncclFloat, ncclSum, comm, NULL));
  else
    faults += RANK_CHECK(ncclAllGather(in, out, count, ncclFloat, comm, NULL));
  for (size_t i = 0; i < count; i++) faults += out[i] != (sum ? (float)(nranks * (nranks + 1) / 2) : 1.0F);
  if (!slots_with(comm, true) != (p->referred == NONE) || !slots_with(comm, false) != (p->referred == ALL)) {
    printf("%s: rank %d has %u slots with references and %u with data\n", p->what, rank, slots_with(comm, true),
           slots_with(comm, false));
    faults++;
  }
  free(in);
  free(out);
  return faults;
}

TEST_LOOP(referred, HK_ARRAY_LENGTH(paths)) {
  path p = paths[_i];
  setenv("NCCL_ALGO", "ring", 1);
  setenv("HOCKET_CMA", "1", 1);              /* whether or not that is faster here */
  setenv("HOCKET_SLOT_BYTES", "1048576", 1); /* one wave of what is short */
  ck_assert_int_eq((p.processes ? ranks_as_processes : ranks_as_threads)(RANKS, run, &p), 0);
}

static int nth_cpu(const cpu_set_t *all, int n) {
  int cpu = -1;
  while (n >= 0) n -= CPU_ISSET(++cpu, all) != 0;
  return cpu;
}

/* A launcher may bind each rank to a core of its own: the ranks have as many cores as they need all the same, and read
 * each other's memory. */
static int run_bound(ncclComm_t comm, int rank, int nranks, void *arg) {
  path p = paths[3];
  ncclComm_t child;
  cpu_set_t *all = arg, own;
  CPU_ZERO(&own);
  CPU_SET(nth_cpu(all, rank), &own);
  int faults = RANK_IS(sched_setaffinity(0, sizeof own, &own) == 0);
  faults += RANK_CHECK(ncclCommSplit(comm, 0, rank, &child, NULL));
  if (faults) return faults;
  for (int r = 0; r < nranks; r++) faults += RANK_IS(child->peers[r].cores == RANKS);
  faults += run(child, rank, nranks, &p);
  return faults + RANK_CHECK(ncclCommDestroy(child));
}

TEST(bound_to_cores) {
  cpu_set_t all;
  ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < RANKS) {
    printf("SKIP: ranks that are bound to cores: this process has only one core\n");
    return;
  }
  setenv("NCCL_ALGO", "ring", 1);
  setenv("HOCKET_CMA", "1", 1);
  ck_assert_int_eq(ranks_as_processes(RANKS, run_bound, &all), 0);
}

/* A reference to the user's data is sent before this rank makes its own copy of them, so that the peer reads meanwhile:
 * the first write to the output, which faults, finds the slot sent. */
static struct {
  const hk_peer_links *links;
  char *out;
  size_t bytes;
  uint64_t sent;
} at_fault;

static void look_at_slots(int signal) {
  (void)signal;
  at_fault.sent = at_fault.links->at[0][HK_LINK_SEND]->link.done;
  mprotect(at_fault.out, at_fault.bytes, PROT_READ | PROT_WRITE);
}

static int run_early(ncclComm_t comm, int rank, int nranks, void *arg) {
  enum { BLOCK = 64 * KIB };
  float *in = calloc(1, BLOCK);
  int faults = 0;
  struct sigaction act = {.sa_handler = look_at_slots};
  at_fault.bytes = (size_t)nranks * BLOCK;
  at_fault.out = mmap(NULL, at_fault.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  faults += RANK_CHECK(ncclAllGather(in, at_fault.out, BLOCK / sizeof *in, ncclFloat, comm, NULL));
  at_fault.links = comm->links->to[1 - rank];
  const uint64_t before = at_fault.links->at[0][HK_LINK_SEND]->link.done;
  (void)arg;
  sigaction(SIGSEGV, &act, NULL);
  mprotect(at_fault.out, at_fault.bytes, PROT_READ);
  faults += RANK_CHECK(ncclAllGather(in, at_fault.out, BLOCK / sizeof *in, ncclFloat, comm, NULL));
  faults += RANK_IS(at_fault.sent == before + 1);
  munmap(at_fault.out, at_fault.bytes);
  free(in);
  return faults;
}

TEST(early) {
  setenv("NCCL_ALGO", "direct", 1);
  setenv("HOCKET_CMA", "1", 1);
  ck_assert_int_eq(ranks_as_processes(RANKS, run_early, NULL), 0);
}

/* What goes by reference needs no room in slots, so a wave may be longer than a slot; with its last part in one. */
static int run_long(ncclComm_t comm, int rank, int nranks, void *arg) {
  const size_t block = *(const size_t *)arg;
  size_t all = block * (size_t)nranks;
  unsigned char *in = malloc(all), *out = calloc(1, all);
  int faults = 0;
  memset(in, rank + 1, all);
  faults += RANK_CHECK(ncclAlltoAll(in, out, block, ncclUint8, comm, NULL));
  for (size_t i = 0; i < all; i++) faults += out[i] != i / block + 1;
  const hk_link *l = &comm->links->to[1 - rank]->at[0][HK_LINK_SEND]->link;
  faults += RANK_IS(comm->selection->machine->reads);
  faults += RANK_IS(l->slots[0].bytes > l->slot_bytes && l->slots[0].flags & HK_SLOT_REF);
  faults += RANK_IS(l->done == (block + 16 * MIB - 1) / (16 * MIB));
  free(in);
  free(out);
  return faults;
}

TEST_LOOP(long_waves, 4) {
  static const size_t blocks[] = {MIB, 5 * MIB + 100, 16 * MIB, 16 * MIB + 4};
  setenv("HOCKET_CMA", "1", 1);
  ck_assert_int_eq(ranks_as_processes(RANKS, run_long, (void *)(uintptr_t)&blocks[_i]), 0);
}

/* Sums and blocks of large messages in memory of ncclMemAlloc are written straight to where the other ranks want them,
 * if these all have such memory and there are more than two. A sum is sent when all ranks have offered their places. A
 * rank's block may go before, so it is not known how many of them are written so. */
typedef struct placed {
  hk_coll coll;
  size_t bytes; /* of a rank's input */
  int nranks;
  bool in_place, one_private; /* rank 1 has an output of malloc */
  share writes;               /* of the ranks, and if one is private, of those that write to it */
} placed;

static const placed placings[] = {
    {HK_ALLREDUCE, 9 * MIB + 20, 3, false, false, ALL}, {HK_ALLREDUCE, 9 * MIB + 20, 4, true, false, ALL},
    {HK_ALLREDUCE, 8 * MIB - 4, 3, false, false, NONE}, {HK_ALLREDUCE, 9 * MIB, 3, false, true, NONE},
    {HK_ALLREDUCE, 9 * MIB, 2, false, false, NONE},     {HK_ALLGATHER, 3 * MIB + 20, 3, false, false, SOME},
    {HK_ALLGATHER, 3 * MIB + 20, 4, true, false, SOME}, {HK_ALLGATHER, 3 * MIB, 3, false, true, NONE}};

static int run_placed(ncclComm_t comm, int rank, int nranks, void *arg) {
  enum { TWICE = 2 }; /* the second call's places are other slots */
  const placed *p = arg;
  const size_t n = (size_t)nranks, blocks = p->coll == HK_ALLGATHER ? n : 1, count = p->bytes / sizeof(float);
  const bool private = p->one_private && rank == 1;
  float *in = NULL, *out = NULL;
  int faults = RANK_CHECK(ncclMemAlloc((void **)&in, p->bytes)) +
               RANK_CHECK(ncclMemAlloc((void **)&out, blocks * p->bytes));
  float *to = private ? malloc(blocks * p->bytes) : out, *from = in;
  if (p->in_place) from = p->coll == HK_ALLGATHER ? to + (size_t)rank * count : to;
  size_t wrong = 0, slots = 0, written = 0;
  for (int k = 0; k < TWICE; k++) {
    if (!p->in_place) memset(to, 0, blocks * p->bytes);
    for (size_t i = 0; i < count; i++) from[i] = (float)((size_t)rank + 10 * (i % 1021) + (size_t)k);
    if (p->coll == HK_ALLREDUCE)
      faults += RANK_CHECK(ncclAllReduce(from, to, count, ncclFloat, ncclSum, comm, NULL));
    else
      faults += RANK_CHECK(ncclAllGather(from, to, count, ncclFloat, comm, NULL));
    for (size_t b = 0; b < blocks; b++)
      for (size_t i = 0; i < count; i++) {
        const size_t one = b + 10 * (i % 1021) + (size_t)k, sum = n * (one - b) + n * (n - 1) / 2;
        wrong += to[b * count + i] != (float)(p->coll == HK_ALLREDUCE ? sum : one);
      }
  }
  for (int peer = 0; peer < nranks; peer++) {
    const hk_peer_links *links = comm->links->to[peer];
    const hk_wired_link *w = links ? links->at[0][HK_LINK_MCAST_SEND] : NULL;
    for (uint32_t s = 0; w && s <= w->link.mask && s < w->link.done; s++, slots++)
      written += (w->link.slots[s].flags & HK_SLOT_PLACED) != 0;
  }
  faults += RANK_IS(wrong == 0) + RANK_IS(slots > 0);
  if (p->writes != SOME && !private) faults += RANK_IS(written == (p->writes == ALL ? slots : 0));
  if (private) free(to);
  return faults + RANK_CHECK(ncclMemFree(in)) + RANK_CHECK(ncclMemFree(out));
}

TEST_LOOP(placed_sums, HK_ARRAY_LENGTH(placings)) {
  placed p = placings[_i];
  setenv("NCCL_ALGO", p.coll == HK_ALLGATHER ? "oneshot" : "twoshot", 1);
  setenv("HOCKET_CMA", _i & 1 ? "0" : "1", 1);
  ck_assert_int_eq(ranks_as_processes(p.nranks, run_placed, &p), 0);
}

/* If no core is left over, each rank moves to the core that it would have if they took turns, and may leave it again.
 * The library's calls of libc come here. */
static _Thread_local struct {
  unsigned calls;
  cpu_set_t masks[8];
} bound; /* of this thread: the ranks of other tests are threads */

int sched_setaffinity(pid_t pid, size_t bytes, const cpu_set_t *mask) {
  if (bound.calls < HK_ARRAY_LENGTH(bound.masks)) bound.masks[bound.calls] = *mask;
  bound.calls++;
  return (int)syscall(SYS_sched_setaffinity, pid, bytes, mask);
}

static int run_spread(ncclComm_t comm, int rank, int nranks, void *arg) {
  const cpu_set_t *all = arg;
  float one = 1, sum = 0;
  int faults = 0;
  bound.calls = 0; /* the init measures, on two cores */
  faults += RANK_CHECK(ncclAllReduce(&one, &sum, 1, ncclFloat, ncclSum, comm, NULL));
  faults += RANK_IS(sum == (float)nranks);
  if (nranks < RANKS) return faults + RANK_IS(bound.calls == 0);
  faults += RANK_IS(bound.calls == 2 && CPU_COUNT(&bound.masks[0]) == 1 && CPU_EQUAL(&bound.masks[1], all));
  faults += RANK_IS(CPU_ISSET(nth_cpu(all, rank % RANKS), &bound.masks[0]));
  return faults;
}

TEST_LOOP(spread, 3) {
  static const int counts[] = {2 * RANKS, RANKS, 1};
  cpu_set_t all, two;
  ck_assert_int_eq(sched_getaffinity(0, sizeof all, &all), 0);
  if (CPU_COUNT(&all) < RANKS) {
    printf("SKIP: ranks on two cores: this process has only one core\n");
    return;
  }
  CPU_ZERO(&two);
  for (int i = 0; i < RANKS; i++) CPU_SET(nth_cpu(&all, i), &two);
  ck_assert_int_eq(sched_setaffinity(0, sizeof two, &two), 0);
  ck_assert_int_eq(ranks_as_processes(counts[_i], run_spread, &two), 0);
}

/* Connections of one host begin with reno: one that begins with bbr is paced for good. */
static struct { int begun, paced; } tcp;

static int note(int fd) {
  char has[16] = "";
  socklen_t bytes = sizeof has - 1;
  if (fd < 0 || getsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, has, &bytes) != 0) return fd; /* no TCP */
  tcp.begun++;
  tcp.paced += strcmp(has, "reno") != 0;
  return fd;
}

int connect(int fd, const struct sockaddr *to, socklen_t bytes) {
  return (int)syscall(SYS_connect, note(fd), to, bytes);
}

int accept4(int fd, struct sockaddr *from, socklen_t *bytes, int flags) {
  return note((int)syscall(SYS_accept4, fd, from, bytes, flags));
}

static int run_unpaced(ncclComm_t comm, int rank, int nranks, void *arg) {
  float one = 1, sum = 0;
  int faults = RANK_CHECK(ncclAllReduce(&one, &sum, 1, ncclFloat, ncclSum, comm, NULL));
  (void)rank, (void)arg;
  return faults + RANK_IS(sum == (float)nranks) + RANK_IS(tcp.begun > 0 && tcp.paced == 0);
}

TEST(unpaced) {
  setenv("NCCL_SHM_DISABLE", "1", 1);
  setenv("NCCL_P2P_DISABLE", "1", 1);
  ck_assert_int_eq(ranks_as_processes(RANKS, run_unpaced, NULL), 0);
}

/* A group of `sends` sends to the other rank and as many receives, with an allreduce in it or not. */
static int exchange(ncclComm_t comm, int rank, size_t bytes, int sends, bool reduces) {
  enum { MOST = 5, LONGEST = 64 * KIB };
  static unsigned char ins[RANKS][MOST][LONGEST], outs[RANKS][MOST][LONGEST];
  unsigned char(*in)[LONGEST] = ins[rank], (*out)[LONGEST] = outs[rank];
  float one = 1, sum = 0;
  int faults = 0;
  for (int i = 0; i < sends; i++) memset(in[i], 16 * rank + i + 1, bytes), memset(out[i], 0, bytes);
  faults += RANK_CHECK(ncclGroupStart());
  for (int i = 0; i < sends; i++) {
    faults += RANK_CHECK(ncclSend(bytes ? in[i] : NULL, bytes, ncclUint8, 1 - rank, comm, NULL));
    faults += RANK_CHECK(ncclRecv(bytes ? out[i] : NULL, bytes, ncclUint8, 1 - rank, comm, NULL));
  }
  if (reduces) faults += RANK_CHECK(ncclAllReduce(&one, &sum, 1, ncclFloat, ncclSum, comm, NULL));
  faults += RANK_CHECK(ncclGroupEnd());
  for (int i = 0; i < sends; i++)
    for (size_t k = 0; k < bytes; k++) faults += out[i][k] != 16 * (1 - rank) + i + 1;
  return faults + (reduces && sum != RANKS);
}

/* A few transfers of one communicator run without the members of a group, whatever their lengths; others do not. */
static int run_direct(ncclComm_t comm, int rank, int nranks, void *arg) {
  static const struct {
    size_t bytes;
    int sends;
    bool reduces, direct;
  } groups[] = {{8, 1, false, true},        {0, 1, false, true}, {48, 4, false, true}, {49, 2, false, true},
                {16 * KIB, 2, false, true}, {8, 1, false, true}, {8, 5, false, false}, {8, 1, true, false},
                {64 * KIB, 4, false, true}, {8, 1, false, true}};
  int faults = 0;
  (void)nranks, (void)arg;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(groups); i++) {
    uint64_t before = comm->order.direct;
    faults += exchange(comm, rank, groups[i].bytes, groups[i].sends, groups[i].reduces);
    if ((comm->order.direct != before) == groups[i].direct) continue;
    printf("rank %d: group %zu ran the wrong way\n", rank, i);
    faults++;
  }
  return faults;
}

TEST_LOOP(direct, 2) { ck_assert_int_eq((_i ? ranks_as_processes : ranks_as_threads)(RANKS, run_direct, NULL), 0); }

/* What an earlier call chose serves later ones of its kind. The field `dtype` of a choice, which matters to uneven
 * collectives alone, is a mark here: it comes back with the choice. */
enum { LAST = 77, KEPT = 99 };
static int sum(ncclComm_t c, size_t count, ncclRedOp_t op) {
  static _Thread_local float data[512];
  return RANK_CHECK(ncclAllReduce(data, data, count, ncclFloat, op, c, NULL));
}
static int run_kept(ncclComm_t c, int rank, int nranks, void *arg) {
  hk_choice *last = &c->plans->last[HK_ALLREDUCE];
  ncclRedOp_t scaled;
  float half = 0.5F;
  int faults = sum(c, 100, ncclSum) + !(last->valid && last->count == 100);
  (void)rank, (void)nranks, (void)arg;
  last->dtype = LAST;
  faults += sum(c, 100, ncclSum) + (last->dtype != LAST); /* the same call */
  faults += sum(c, 200, ncclSum) + (last->dtype != ncclFloat);
  faults += sum(c, 100, ncclMax) + (last->dtype != ncclFloat);
  for (int i = 0; i < HK_CHOICES_KEPT; i++)
    if (c->plans->kept[i].valid) c->plans->kept[i].dtype = KEPT;
  faults += sum(c, 100, ncclSum) + (last->dtype != KEPT);
  faults += sum(c, 100, ncclMax) + (last->dtype != KEPT);
  faults += sum(c, 300, ncclMax) + (last->dtype != ncclFloat);
  /* The scalar of an operator may change from call to call. */
  faults += RANK_CHECK(ncclRedOpCreatePreMulSum(&scaled, &half, ncclFloat, ncclScalarHostImmediate, c));
  for (int i = 0; i < 2; i++) {
    faults += sum(c, 100, scaled) + last->valid + (last->dtype != ncclFloat);
    last->dtype = LAST;
  }
  faults += RANK_CHECK(ncclRedOpDestroy(scaled, c));
  faults += sum(c, 200, ncclSum) + (last->dtype != KEPT);
  hk_selection_only(c, HK_ALLREDUCE, ~0u); /* what may be chosen has changed */
  faults += sum(c, 200, ncclSum) + (last->dtype != ncclFloat);
  return faults;
}

TEST(choices_are_kept) { ck_assert_int_eq(ranks_as_threads(RANKS, run_kept, NULL), 0); }

int main(void) { return suite_main("paths_taken"); }
