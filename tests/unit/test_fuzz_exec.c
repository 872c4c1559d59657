/* SPDX-License-Identifier: Apache-2.0 */
/* Random programs on the executor, all ranks in one thread: proved programs must give right results, whatever the
 * sizes, the order of ranks, the number of channels, and whether links carry copies or references. HOCKET_TEST_SECONDS
 * and HOCKET_TEST_SEED: see scripts/fuzz.sh. */
#include "../../src/kernels/exec_lanes.h"
#include "../../src/kernels/steps.h"
#include "../../src/program/builder.h"
#include "../../src/transport/transport.h"
#include "../support/fuzz.h"
#include "../support/randprog.h"
#include "../support/randprog_emit.h" /* RAND_RANKS */
#include "../support/suite.h"

enum { MAX_CHANNELS = 3, CHANNELS_OF_LINKS = 8 };

/* One FIFO in plain memory; multicast: with a head for every reader. */
typedef struct fifo {
  hk_slot *slots;
  hk_head *heads;
  char *payload, *small;
  uint32_t headers;
  uint64_t begin; /* slots of earlier operations */
} fifo;

/* A place that was offered for a slot of a proxied link (a card would write there), until the slot has come. */
typedef struct place {
  hk_link *link;
  uint64_t slot;
  char *to;
  uint32_t bytes;
} place;
enum { PLACES = 4096, PLACE_MIN = 40 };
static place places[PLACES];
static unsigned nplaces, nplaced, noffers;
static const char *wrong_offer;

/* Each slot that is still to come is offered at most once, in order, and not too far ahead. */
static void offer(hk_transport_state *s, hk_link *l, uint64_t k, void *to, uint32_t bytes) {
  (void)s;
  const uint64_t ahead = l->mask < HK_LINK_AHEAD ? l->mask + 1 : HK_LINK_AHEAD;
  if (k < l->done || k >= l->done + ahead) wrong_offer = "a slot that is past or too far ahead is offered";
  if (bytes < PLACE_MIN || !to) wrong_offer = "a place is offered that is too small";
  for (unsigned i = 0; i < nplaces; i++)
    if (places[i].link == l && places[i].slot >= k) wrong_offer = "places are not offered in order";
  ck_assert_uint_lt(nplaces, PLACES);
  places[nplaces++] = (place){l, k, to, bytes};
  noffers++;
}
static const hk_transport_zero_copy proxied_zero_copy = {.post_target = offer};
static const hk_transport proxied = {.name = "proxied", .zero_copy = &proxied_zero_copy};
static hk_transport_state owner = {.transport = &proxied};

/* What has come is written to its place at once, and its slot refers to that. */
static void fill_places(void) {
  unsigned kept = 0;
  for (unsigned i = 0; i < nplaces; i++) {
    const place *p = &places[i];
    hk_slot *s = &p->link->slots[(uint32_t)p->slot & p->link->mask];
    const bool past = p->slot < p->link->done, come = atomic_load(&s->seq) == (uint32_t)(p->slot + 1);
    if (!past && come) {
      if (s->bytes != p->bytes) wrong_offer = "a place of another size than the slot's was offered";
      const char *from = s->flags & HK_SLOT_REF ? (const char *)(uintptr_t)s->ref.offset
                                                : hk_link_place(p->link, p->slot, s->bytes);
      memmove(p->to, from, s->bytes);
      s->ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)p->to};
      s->flags |= HK_SLOT_REF;
      nplaced++;
    } else if (!past) {
      places[kept++] = *p;
    }
  }
  nplaces = kept;
}

typedef struct rank {
  hk_plan plan;
  hk_launch launch;
  hk_exec exec;
  hk_link *links; /* [channels][nlinks] */
  uint32_t *in, *out;
  void *memory, *scratch;
} rank;

typedef struct world {
  uint64_t seed;
  randprog p;
  unsigned channels, nslots;
  bool proxied; /* links between two ranks are */
  hk_launch launch;
  size_t count, words; /* elements of a message; of the longest buffer */
  rank ranks[RAND_RANKS];
  /* [from][to, or RAND_RANKS for all][channel][copy of the lanes] */
  fifo fifos[RAND_RANKS][RAND_RANKS + 1][CHANNELS_OF_LINKS][MAX_CHANNELS];
} world;

static void *zeroed(size_t bytes) {
  void *p = aligned_alloc(64, (bytes + 127) & ~(size_t)63);
  ck_assert_ptr_nonnull(p);
  return memset(p, 0, (bytes + 127) & ~(size_t)63);
}

static void connect(world *w, int r, const hk_link_need *need, unsigned channel, hk_link *l) {
  bool sends = hk_link_sends((hk_link_kind)need->kind), multicast = need->kind >= HK_LINK_MCAST_SEND;
  int from = sends ? r : need->peer, to = multicast ? RAND_RANKS : sends ? need->peer : r;
  fifo *f = &w->fifos[from][to][need->channel][channel];
  if (!f->slots) {
    f->headers = w->nslots << (multicast ? random_below(&w->seed, 4) : 0);
    f->slots = zeroed(f->headers * sizeof *f->slots);
    if (f->headers > w->nslots) f->small = zeroed((size_t)f->headers * HK_SLOT_SMALL);
    f->heads = zeroed(RAND_RANKS * sizeof *f->heads);
    f->begin = random_below(&w->seed, 50);
    for (int h = 0; h < RAND_RANKS; h++) atomic_store(&f->heads[h].value, f->begin);
    f->payload = zeroed(w->nslots * w->launch.chunk);
  }
  *l = (hk_link){.slots = f->slots,
                 .heads = f->heads,
                 .payload = f->payload,
                 .small = f->small,
                 .small_bytes = f->small ? HK_SLOT_SMALL : 0,
                 .mask = f->headers - 1,
                 .area_mask = w->nslots - 1,
                 .done = f->begin,
                 .limit = sends ? f->begin + f->headers : 0,
                 .slot_bytes = (uint32_t)w->launch.chunk,
                 .nheads = multicast && sends ? (uint32_t)w->p.nranks - 1 : 1,
                 .peer = need->peer,
                 .kind = need->kind,
                 .by_ref = random_below(&w->seed, 4) ? 2 : 0};
  /* Readers of a multicast take the heads in the order of their ranks. */
  if (multicast && !sends) l->heads += r - (r > from);
  atomic_init(&l->state, HK_LINK_READY);
  if (!w->proxied || multicast) return;
  l->proxied = 1;
  l->owner = &owner;
  if (!sends) atomic_init(&l->place_min, PLACE_MIN);
}

static uint32_t input(int r, size_t element) {
  return (uint32_t)(element * 2654435761u + (uint32_t)r * 40503u) & 0xffffff;
}

static void choose_sizes(world *w) {
  const hk_program *p = w->p.programs[0];
  hk_launch *a = &w->launch;
  bool large = random_below(&w->seed, 4) == 0; /* large enough for references */
  a->unit = sizeof(uint32_t);
  w->count = random_below(&w->seed, large ? 30000 : 200);
  a->total = w->count * a->unit;
  size_t block = p->partition == HK_PART_SPLIT ? (w->count + p->blocks - 1u) / p->blocks : w->count;
  a->block_bytes = block * a->unit;
  a->chunk = (1 + random_below(&w->seed, large ? 8192 : 64)) * a->unit;
  a->signature = random_below(&w->seed, 1000);
  w->words = p->partition == HK_PART_SPLIT ? w->count : w->count * p->blocks;
  w->channels = 1 + random_below(&w->seed, MAX_CHANNELS);
  w->nslots = 1;
  while (w->nslots < w->p.slots) w->nslots *= 2;
  uint32_t three = 3;
  hk_redop ops[] = {HK_SUM, HK_AVG, HK_MAX, HK_PREMULSUM};
  hk_redop op = ops[random_below(&w->seed, 4)];
  ck_assert_int_eq(hk_reducer_init(&a->reducer, HK_U32, op, w->p.nranks, op == HK_PREMULSUM ? &three : NULL), HK_OK);
}

static void make_rank(world *w, int r, bool in_place) {
  rank *k = &w->ranks[r];
  const hk_program *p = w->p.programs[r];
  k->links = calloc((size_t)w->channels * p->nlinks + 1, sizeof *k->links);
  hk_link **links = calloc((size_t)w->channels * p->nlinks + 1, sizeof *links);
  for (unsigned c = 0; c < w->channels; c++)
    for (uint32_t n = 0; n < p->nlinks; n++) {
      links[c * p->nlinks + n] = &k->links[c * p->nlinks + n];
      connect(w, r, &hk_program_links(p)[n], c, links[c * p->nlinks + n]);
    }
  k->plan = (hk_plan){.program = p, .links = links, .channels = w->channels, .max_operands = 2 * RAND_OPERANDS};
  k->plan.proxied = w->proxied;
  if (random_below(&w->seed, 4)) k->plan.steps = hk_steps_make(&k->plan);
  k->out = zeroed(w->words * sizeof *k->out);
  memset(k->out, 0xee, w->words * sizeof *k->out);
  k->in = k->out;
  if (!in_place) k->in = zeroed(w->words * sizeof *k->in);
  /* In place, a message that is one of many lies at its rank's place in the longer buffer. */
  bool in_longer = p->in_blocks > p->out_blocks, out_longer = p->out_blocks > p->in_blocks;
  if (in_place && out_longer) k->in = k->out + (size_t)r * w->count;
  for (size_t e = 0; e < (p->partition == HK_PART_SPLIT ? w->count : w->count * p->in_blocks); e++)
    k->in[e] = input(r, e);
  uint32_t *out = in_place && in_longer ? k->in + (size_t)r * w->count : k->out;
  k->memory = zeroed(hk_exec_bytes(&k->plan));
  k->scratch = zeroed(hk_exec_scratch_bytes(&k->plan, w->launch.chunk));
  k->launch = w->launch;
  k->launch.brief = w->launch.block_bytes < HK_REF_MIN_BYTES && hk_exec_has_steps(&k->plan, &w->launch);
  hk_exec_init(&k->exec, &k->plan, &k->launch, k->in, out, k->memory, k->scratch);
}

/* Is a link of this lane not ready because of the other rank? To drain, all slots must be back. */
static bool is_held_up(const rank *k, unsigned lane, bool draining, int by) {
  const hk_program *p = k->plan.program;
  for (uint32_t n = 0; n < p->nlinks; n++) {
    const hk_link *l = k->plan.links[lane / p->nlanes * p->nlinks + n];
    if (hk_program_links(p)[n].lane != lane % p->nlanes) continue;
    if (!hk_link_sends((hk_link_kind)l->kind)) {
      if (!draining && l->peer == by && !hk_link_can_recv(l)) return true;
      continue;
    }
    for (uint32_t h = 0; h < l->nheads; h++) {
      const int reader = l->kind == HK_LINK_MCAST_SEND ? (int)h + ((int)h >= l->peer) : l->peer;
      if (reader == by && l->done - atomic_load(&l->heads[h].value) > (draining ? 0 : l->area_mask)) return true;
    }
  }
  return false;
}

/* A rank that cannot go on waits for others, each named once, and for none that does not hold it up. Of each of its
 * lanes that has not ended one at least is named. */
static const char *check_awaited(const world *w, const rank *k) {
  const hk_exec *x = &k->exec;
  int peers[64], first[1];
  bool guilty[64] = {false};
  const int n = hk_exec_waits_for(x, peers, 64);
  if (n < 1) return "a rank waits for no other";
  for (int i = 0; i < n; i++) {
    if (peers[i] < 0 || peers[i] >= w->p.nranks) return "a rank waits for one that there is not";
    if (hk_exec_done(&w->ranks[peers[i]].exec)) return "a rank waits for one that has ended";
    for (int j = 0; j < i; j++)
      if (peers[j] == peers[i]) return "a rank waits twice for another";
  }
  for (unsigned lane = 0; lane < w->channels * x->plan->program->nlanes; lane++) {
    const bool draining = !x->brief && x->lanes[lane].draining;
    if (x->brief ? x->at[lane] == x->plan->steps->end[lane] : x->lanes[lane].done) continue;
    bool any = false;
    for (int i = 0; i < n; i++)
      if (is_held_up(k, lane, draining, peers[i])) guilty[i] = any = true;
    if (!any) return "none is named of those for which a lane waits";
  }
  for (int i = 0; i < n; i++)
    if (!guilty[i]) return "a rank waits for one that does not hold it up";
  if (hk_exec_waits_for(x, first, 1) != 1 || first[0] != peers[0]) return "room for one gives another rank";
  return NULL;
}

/* For each slot that a lane waits for, and that goes unchanged to one output, a place was offered. */
static const char *check_offers(const rank *k) {
  const hk_exec *x = &k->exec;
  const hk_program *p = k->plan.program;
  for (unsigned n = 0; n < p->nlanes * k->plan.channels && !x->brief; n++) {
    const hk_lane_run *l = &x->lanes[n];
    if (l->done || l->draining) continue;
    const hk_instr *i = &l->instrs[l->at.pc];
    const hk_operand *o = hk_instr_operands(p, i);
    const size_t bytes = hk_cursor_bytes(&l->at, p, i, o, &x->sizes);
    if (!hk_instr_lands(i, o) || bytes < PLACE_MIN || (i->flags & HK_INSTR_FINAL && hk_coll_reduces((hk_coll)p->coll)))
      continue;
    const hk_link *link = l->links[hk_cursor_link(&l->at, &o[i->ndst])];
    bool offered = !link->proxied || hk_link_can_recv(link);
    for (unsigned at = 0; at < nplaces && !offered; at++)
      offered = places[at].link == link && places[at].slot == link->done && places[at].bytes == bytes;
    if (!offered) return "no place is offered for a slot that a lane waits for";
  }
  return NULL;
}

static const char *run(world *w) {
  for (unsigned idle = 0;;) {
    bool moved = false, done = true;
    const unsigned r = random_below(&w->seed, (unsigned)w->p.nranks);
    hk_exec *x = &w->ranks[r].exec;
    const bool ended = hk_exec_done(x);
    if (!ended && hk_exec_step(x, &moved) != HK_OK) return "a step fails";
    if (random_below(&w->seed, 3)) fill_places();
    if (wrong_offer) return wrong_offer;
    const char *wrong = ended || moved || hk_exec_done(x) ? NULL : check_awaited(w, &w->ranks[r]);
    if (!wrong && !ended && !moved) wrong = check_offers(&w->ranks[r]);
    if (wrong) return wrong;
    for (int i = 0; i < w->p.nranks; i++) done = done && hk_exec_done(&w->ranks[i].exec);
    if (done) return NULL;
    idle = moved ? 0 : idle + 1;
    if (idle > 10000) return "nothing moves any more";
  }
}

static uint32_t reduced(const world *w, size_t element) {
  uint32_t sum = 0;
  for (int r = 0; r < w->p.nranks; r++) {
    uint32_t x = input(r, element);
    if (w->launch.reducer.op == HK_MAX)
      sum = x > sum ? x : sum;
    else
      sum += w->launch.reducer.op == HK_PREMULSUM ? 3 * x : x;
  }
  return w->launch.reducer.op == HK_AVG ? sum / (uint32_t)w->p.nranks : sum;
}

/* Element e of output block b. */
static uint32_t wanted(const world *w, int r, unsigned b, size_t e) {
  switch (w->p.coll) {
    case HK_ALLREDUCE:
    case HK_REDUCE: return reduced(w, e);
    case HK_REDUCE_SCATTER: return reduced(w, (size_t)r * w->count + e);
    case HK_BROADCAST: return input(w->p.root, e);
    case HK_SCATTER: return input(w->p.root, (size_t)r * w->count + e);
    case HK_ALLTOALL: return input((int)b, (size_t)r * w->count + e);
    default: return input((int)b, e);
  }
}

static const char *check(const world *w) {
  for (int r = 0; r < w->p.nranks; r++) {
    const hk_program *p = w->p.programs[r];
    if (!hk_coll_has_output(w->p.coll, r, w->p.root)) continue;
    const uint32_t *out = (const uint32_t *)w->ranks[r].exec.out;
    unsigned blocks = p->partition == HK_PART_SPLIT ? 1 : p->out_blocks;
    for (unsigned b = 0; b < blocks; b++)
      for (size_t e = 0; e < w->count; e++)
        if (out[b * w->count + e] != wanted(w, r, b, e)) return "an element is wrong";
  }
  return NULL;
}

static void free_world(world *w) {
  for (int r = 0; r < w->p.nranks; r++) {
    rank *k = &w->ranks[r];
    if (k->in < k->out || k->in >= k->out + w->words + 1) free(k->in);
    free(k->out);
    free((void *)k->plan.links);
    free(k->plan.steps);
    free(k->links);
    free(k->memory);
    free(k->scratch);
  }
  fifo *f = &w->fifos[0][0][0][0];
  for (size_t n = sizeof w->fifos / sizeof *f; n; n--, f++) {
    free(f->slots);
    free(f->heads);
    free(f->payload);
    free(f->small);
  }
  randprog_free(&w->p);
  free(w);
}

TEST(random_programs_run_right) {
  fuzz_begin(500);
  uint64_t seed = fuzz_seed;
  do {
    world *w = calloc(1, sizeof *w);
    w->seed = seed;
    randprog_make(&w->p, seed, 0, -1);
    choose_sizes(w);
    w->proxied = random_below(&w->seed, 3) == 0;
    nplaces = 0;
    bool in_place = w->p.coll != HK_ALLTOALL && random_below(&w->seed, 2);
    for (int r = 0; r < w->p.nranks; r++) make_rank(w, r, in_place);
    const char *trouble = run(w);
    if (!trouble) trouble = check(w);
    ck_assert_msg(!trouble, "seed %llu: %s over %d ranks, %zu elements, chunk %zu, %u channels, %s: %s",
                  (unsigned long long)seed, hk_coll_name(w->p.coll), w->p.nranks, w->count, w->launch.chunk,
                  w->channels, in_place ? "in place" : "out of place", trouble);
    free_world(w);
  } while (seed++, fuzz_goes_on());
  ck_assert(fuzz_case < 50 || (noffers > 0 && nplaced > 0));
}

/* ---- which programs run as steps ---- */

/* Lanes of copies, the first one of an instruction with so many operands; some repeated. */
static bool makes_steps(const unsigned *copies, unsigned nlanes, unsigned repeats, unsigned operands) {
  hk_builder *b;
  hk_program *p;
  hk_operand src[32];
  ck_assert_int_eq(hk_builder_new(&b, &(hk_build){.coll = HK_ALLREDUCE, .rank = 0, .nranks = 2}), HK_OK);
  for (unsigned k = 0; k < 32; k++) src[k] = hk_in(0, 0);
  for (unsigned lane = 0; lane < nlanes; lane++) {
    hk_build_lane(b);
    hk_build_repeat(b, repeats);
    for (unsigned i = 0; i < copies[lane]; i++)
      hk_build_move(b, 0, &(hk_operand){.space = HK_OUT}, 1, src, i == 0 && lane == 0 ? operands - 1 : 1);
    hk_build_end_repeat(b);
  }
  ck_assert_int_eq(hk_builder_finish(b, "copies", &p), HK_OK);
  hk_link *none = NULL;
  const hk_plan plan = {.program = p, .links = &none, .channels = 1, .max_operands = 32};
  hk_steps *s = hk_steps_make(&plan);
  const bool made = s != NULL;
  if (s) ck_assert_int_eq(s->nlanes, nlanes);
  for (unsigned lane = 0; s && lane < nlanes; lane++)
    ck_assert_int_eq(s->end[lane] - s->begin[lane], copies[lane] * repeats);
  free(s);
  hk_program_free(p);
  return made;
}

TEST(limits_of_steps) {
  static const struct {
    unsigned copies[6], nlanes, repeats, operands;
    bool steps;
  } cases[] = {{{64}, 1, 1, 2, true},
               {{65}, 1, 1, 2, false},
               {{1}, 1, 64, 2, true},
               {{1}, 1, 65, 2, false},
               {{16, 16, 16, 16}, 4, 1, 2, true},
               {{16, 16, 16, 17}, 4, 1, 2, false},
               {{1, 1, 1, 1, 1}, 5, 1, 2, false},
               {{2, 2}, 2, 16, 2, true},
               {{2, 3}, 2, 13, 2, false},
               {{3}, 1, 1, 20, true},
               {{3}, 1, 1, 21, false},
               {{40, 40}, 2, 1, 2, false}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    ck_assert_msg(makes_steps(cases[i].copies, cases[i].nlanes, cases[i].repeats, cases[i].operands) == cases[i].steps,
                  "case %zu", i);
}

int main(void) { return suite_main("fuzz-exec", .timeout = 0); }
