/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Measures from which size process_vm_readv is faster than two copies through a slot. That depends on the processor
 * (docs/results/cpu.md), so two ranks of each host time both ways at init. Both ranks run at once, because most
 * collectives move data in both directions. The measured times contain no waits, and the least of several times is
 * used, so other work on the machine has little effect.
 *
 * If possible, the two ranks run on two cores meanwhile: on one core a slot would be in the first-level cache. Ranks
 * that share cores find a slot in another core's cache, or in none.
 *
 * The two ranks meet over their own link for sends and receives, in slots that carry two words each, and give all of
 * them back. Each repetition writes to another place of the link's payload area, because lines that are still in the
 * reader's cache are slower to write than the lines of a long message.
 */
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include "../../base/log.h"
#include "../../program/program.h"
#include "shm_state.h"

enum { MOST = HK_SHM_CMA_MIN_BYTES, REPEATS = 8, PAGE = 4096 };
static const uint32_t sizes[] = {HK_SHM_CMA_LEAST_BYTES, MOST}; /* the first one that is faster counts */
enum { WRITE, READ, KERNEL, WAYS };

typedef struct contest {
  const hk_transport_env *env;
  pid_t pid; /* of the peer */
  hk_link out, in;
  char *from, *to;
  uint64_t theirs; /* address of the peer's `from` in its memory */
} contest;

/* Exchanges two words with the peer; also a barrier. */
static hk_status shm_measure_swap(contest *c, const uint64_t mine[2], uint64_t theirs[2]) {
  enum { WORDS = 2 * sizeof(uint64_t) };
  hk_waiter w;
  hk_wait_begin(&w, c->env->wait);
  while (!hk_link_can_send(&c->out, WORDS)) HK_OR_RETURN(hk_wait_pause(&w));
  memcpy(hk_link_send_buffer(&c->out, WORDS), mine, WORDS);
  hk_link_fill(&c->out, WORDS, 0, 0);
  while (!hk_link_can_recv(&c->in)) HK_OR_RETURN(hk_wait_pause(&w));
  memcpy(theirs, hk_link_recv_data(&c->in), WORDS);
  hk_link_release(&c->in);
  return HK_OK;
}

static bool shm_measure_move(const contest *c, int way, size_t place, size_t bytes) {
  if (way == KERNEL) return hk_shm_cma_read(c->pid, c->theirs, c->to, bytes) == 0;
  if (way == WRITE)
    memcpy(c->out.payload + place, c->from, bytes);
  else
    memcpy(c->to, c->in.payload + place, bytes);
  return true;
}

/* Accesses each page once before the next measurement, so that it contains no page fault. */
static void shm_measure_touch(const contest *c, int way, size_t place, size_t bytes) {
  const volatile char *in = c->in.payload + place;
  volatile char *out = c->out.payload + place;
  for (size_t i = 0; i < bytes; i += PAGE) {
    if (way == WRITE) out[i] = 0;
    if (way == READ) (void)in[i];
  }
}

/* The least time of each way in ns. */
static hk_status shm_measure_time_all(contest *c, size_t places, size_t bytes, uint64_t best[WAYS]) {
  uint64_t words[2] = {0};
  for (int way = 0; way < WAYS; way++) best[way] = UINT32_MAX;
  for (size_t i = 0; i < WAYS * REPEATS; i++) {
    int way = i % WAYS;
    size_t place = i / WAYS % places * MOST;
    shm_measure_touch(c, way, place, bytes);
    HK_OR_RETURN(shm_measure_swap(c, words, words));
    uint64_t begin = hk_now_ns();
    bool moved = shm_measure_move(c, way, place, bytes);
    uint64_t ns = hk_now_ns() - begin;
    if (moved && ns < best[way]) best[way] = ns;
  }
  return HK_OK;
}

/* Times one size. *reads: by process_vm_readv it takes less. */
static hk_status shm_measure_compare(contest *c, size_t places, uint32_t bytes, int peer, bool *reads) {
  uint64_t best[WAYS], theirs[2];
  HK_OR_RETURN(shm_measure_time_all(c, places, bytes, best));
  uint64_t mine[2] = {best[WRITE] + best[READ], best[KERNEL]};
  HK_OR_RETURN(shm_measure_swap(c, mine, theirs)); /* also ensures that the peer no longer reads this rank's memory */
  double slots = (double)mine[0] + (double)theirs[0], kernel = (double)mine[1] + (double)theirs[1];
  *reads = kernel < slots;
  if (c->env->rank < peer)
    HK_INFO(HK_SUB_SHM, "%u KiB take %.1f us through a slot and %.1f us by process_vm_readv", bytes >> 10, slots / 2e3,
            kernel / 2e3);
  return HK_OK;
}

/* Keeps this thread on the processor where it is, or, if `moves`, on others. A failure does no harm. */
static void shm_measure_stay(const cpu_set_t *may, int cpu, bool moves) {
  cpu_set_t set = *may;
  if (cpu < 0 || cpu >= CPU_SETSIZE || !CPU_COUNT(may)) return;
  if (!moves) CPU_ZERO(&set);
  if (moves)
    CPU_CLR(cpu, &set);
  else
    CPU_SET(cpu, &set);
  if (CPU_COUNT(&set)) (void)sched_setaffinity(0, sizeof set, &set);
}

static hk_status shm_measure_run(contest *c, size_t places, int peer, const cpu_set_t *may, uint32_t *from) {
  const int cpu = sched_getcpu();
  uint64_t hello[2] = {(uint64_t)(uintptr_t)c->from, (uint64_t)cpu}, theirs[2];
  bool reads = false;
  *from = MOST;
  HK_OR_RETURN(shm_measure_swap(c, hello, theirs));
  if (!hello[0] || !theirs[0]) return HK_OK;
  c->theirs = theirs[0];
  shm_measure_stay(may, cpu, theirs[1] == hello[1] && c->env->rank > peer);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(sizes) && !reads; i++) {
    HK_OR_RETURN(shm_measure_compare(c, places, sizes[i], peer, &reads));
    *from = reads ? sizes[i] : 0;
  }
  if (c->env->rank < peer && reads)
    HK_INFO(HK_SUB_SHM,
            "private memory of %u KiB and more goes by process_vm_readv (HOCKET_CMA=0 or 1 decides without a "
            "measurement)",
            *from >> 10);
  else if (c->env->rank < peer)
    HK_INFO(HK_SUB_SHM, "private memory goes through slots (HOCKET_CMA=0 or 1 decides without a measurement)");
  return HK_OK;
}

hk_status hk_shm_cma_measure(hk_shm_state *s, int peer, bool able, uint32_t *from) {
  const hk_shm_process *p = s->process;
  const hk_transport_env *env = s->base.env;
  contest c = {.env = env, .pid = env->peers[peer].pid};
  hk_link_key key = {.peer = peer, .kind = HK_LINK_SEND, .channel = HK_CHANNEL_P2P};
  uint32_t self = (uint32_t)p->index[env->rank], other = (uint32_t)p->index[peer];
  hk_shm_arena_link(&p->arena, &key, self, other, &c.out);
  key.kind = HK_LINK_RECV;
  hk_shm_arena_link(&p->arena, &key, self, other, &c.in);
  size_t places = p->arena.payload / MOST; /* 0 with very small slots: nothing to measure */
  if (able && places && (c.from = aligned_alloc(PAGE, 2 * MOST))) {
    c.to = c.from + MOST;
    memset(c.from, 1, 2 * MOST); /* no page faults later */
  }
  cpu_set_t may;
  const bool pins = sched_getaffinity(0, sizeof may, &may) == 0; /* it fails with more processors than the set holds */
  if (!pins) CPU_ZERO(&may);
  hk_status rc = shm_measure_run(&c, places, peer, &may, from);
  if (pins) (void)sched_setaffinity(0, sizeof may, &may);
  free(c.from);
  return rc;
}
