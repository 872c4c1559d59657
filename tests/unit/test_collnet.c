/* SPDX-License-Identifier: Apache-2.0 */
/* Links of groups whose slots the network adds up, gathers and scatters, with the example CollNet plugin: ranks of this
 * process, moved by one thread in a random order that each run repeats. */
#include <libgen.h>
#include <pthread.h>
#include "../../src/program/program.h"
#include "../../src/transport/collnet.h"
#include "../support/leftovers.h"
#include "../support/process.h"
#include "../support/suite.h"

enum { MOST = 5, RANKS = 12, SLOT = 65536, KINDS = 6 };
static const hk_link_kind kinds[KINDS] = {HK_LINK_SUM_SEND,    HK_LINK_SUM_RECV,     HK_LINK_GATHER_SEND,
                                          HK_LINK_GATHER_RECV, HK_LINK_SCATTER_SEND, HK_LINK_SCATTER_RECV};
/* The ranks of the group are not 0 to n - 1. */
static const int ranks[MOST] = {7, 2, 11, 0, 5};

typedef struct member {
  hk_transport_env env;
  hk_wait_env wait;
  hk_transport_state *state;
  hk_link links[KINDS];
  unsigned sent[KINDS], got[KINDS];
  pthread_t thread;
  bool good;
  char why[160];
} member;
static member members[MOST];
static hk_collnet_fact facts[RANKS];
static int n;

static void use(const char *version) {
  char self[3800] = "", path[4096];
  ck_assert_int_gt((int)readlink("/proc/self/exe", self, sizeof self - 1), 0);
  snprintf(path, sizeof path, "%s/../plugins/libnccl-net-adds-%s.so", dirname(self), version);
  set_param("NCCL_NET_PLUGIN", path);
}

static void begin(int i, uint32_t nslots, size_t slot_bytes) {
  member *m = &members[i];
  m->env = (hk_transport_env){.settings = hk_settings_now(),
                              .rank = ranks[i],
                              .nranks = RANKS,
                              .comm_id = 77,
                              .wait = &m->wait,
                              .nslots = nslots,
                              .slot_bytes = slot_bytes};
  ck_assert_int_eq(hk_collnet_begin(&m->env, &m->state, &facts[ranks[i]]), HK_OK);
}
static void *connects(void *arg) {
  member *m = arg;
  m->good = hk_collnet_connect(m->state, facts, ranks, n, (int)(m - members), m->why, sizeof m->why);
  return NULL;
}
static void connect_all(void) {
  for (int i = 0; i < n; i++) ck_assert_int_eq(pthread_create(&members[i].thread, NULL, connects, &members[i]), 0);
  for (int i = 0; i < n; i++) pthread_join(members[i].thread, NULL);
}
static hk_status open_link(int i, int kind, int peer, hk_link *l) {
  const hk_link_key key = {.peer = peer, .kind = (uint8_t)kinds[kind]};
  return hk_transport_collnet.open(members[i].state, &key, l);
}
static int neighbour(int i, int kind) { return ranks[(i + (kind % 2 ? n - 1 : 1)) % n]; }
static void open_all(int first, int end) {
  for (int i = 0; i < n; i++)
    for (int k = first; k < end; k++) ck_assert_int_eq(open_link(i, k, neighbour(i, k), &members[i].links[k]), HK_OK);
}
static void detach_all(void) {
  for (int i = 0; i < n; i++) {
    for (int k = 0; k < KINDS; k++)
      if (members[i].links[k].slots) hk_transport_collnet.close(&members[i].links[k]);
    hk_transport_collnet.detach(members[i].state);
  }
}

/* ---- what is sent: whole numbers, which floats add up exactly ---- */

static const uint32_t counts[] = {0, 1, 12, 13, 1000, SLOT / 4, 3, 0, 100};
static uint32_t count_of(unsigned k) { return counts[k % HK_ARRAY_LENGTH(counts)]; }
static float value(int i, unsigned k, uint32_t at) { return (float)((i + 1) * 100 + (int)(k * 7 + at % 50)); }
static bool is_max(unsigned k) { return k % 4 == 3; }
static uint32_t flags_of(unsigned k) { return HK_SLOT_SUM(HK_F32, is_max(k) ? HK_MAX : HK_SUM); }
/* Of all members' slot of that number, in round `step`. */
static float total(unsigned step, uint32_t at, unsigned slot) {
  float sum = 0;
  for (int i = 0; i < n; i++) {
    const float x = value(i, slot, at);
    sum = is_max(step) ? (i && sum > x ? sum : x) : sum + x;
  }
  return sum;
}

/* Sums: slot k of all. Gathers: each sends slot k, and gets n of them. Scatters: each sends n slots a round, and gets
 * the sum of those at its place. */
static void send_one(member *m, int kind) {
  hk_link *l = &m->links[kind];
  const unsigned k = m->sent[kind], round = kind == 4 ? k / (unsigned)n : k;
  const uint32_t bytes = 4 * (kind == 4 ? count_of(round) / 2 : count_of(round));
  if (!hk_link_can_send(l, bytes)) return;
  float *to = hk_link_send_buffer(l, bytes);
  for (uint32_t at = 0; at < bytes / 4; at++) to[at] = value((int)(m - members), k, at);
  hk_link_publish(l, bytes, 500 + round, kind == 2 ? 0 : flags_of(round));
  m->sent[kind]++;
}
static void take_one(member *m, int kind) {
  hk_link *l = &m->links[kind];
  const unsigned k = m->got[kind], me = (unsigned)(m - members), by = (unsigned)n;
  const unsigned round = kind == 3 ? k / by : k;
  if (!hk_link_can_recv(l)) return;
  const hk_slot *s = hk_link_recv_slot(l);
  const float *data = hk_link_recv_data(l);
  ck_assert_uint_eq(s->signature, 500 + round);
  ck_assert_uint_eq(s->bytes, 4 * (kind == 5 ? count_of(round) / 2 : count_of(round)));
  for (uint32_t at = 0; at < s->bytes / 4; at++) {
    const float expected = kind == 3   ? value((int)(k % by), round, at)
                           : kind == 5 ? total(round, at, round * by + me)
                                       : total(round, at, round);
    ck_assert_msg(data[at] == expected, "kind %d, slot %u, number %u: %f, not %f", kind, k, at, (double)data[at],
                  (double)expected);
  }
  hk_link_release(l);
  m->got[kind]++;
}

static uint32_t mix(uint32_t x) {
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

static hk_status run(int first, int end, unsigned rounds) {
  bool over = false, moved = false;
  uint32_t step = 0;
  for (; !over && step < 3000000; step++) {
    const uint32_t what = mix(step);
    member *m = &members[what % (uint32_t)n];
    const int kind = first + (int)(what >> 8) % (end - first);
    const unsigned most = rounds * (kind == 3 || kind == 4 ? (unsigned)n : 1);
    if (what >> 16 & 1)
      HK_OR_RETURN(hk_transport_collnet.proxied->progress(m->state, &moved));
    else if (kind % 2 == 0 && m->sent[kind] < most)
      send_one(m, kind);
    else if (kind % 2 && m->got[kind] < most)
      take_one(m, kind);
    over = true;
    for (int i = 0; i < n && over; i++)
      for (int k = first; k < end && over; k++) {
        const unsigned all = rounds * (k == 3 || k == 4 ? (unsigned)n : 1);
        over = k % 2 ? members[i].got[k] == all : members[i].sent[k] == all && hk_link_drained(&members[i].links[k]);
      }
  }
  ck_assert_msg(over, "not all that was sent came");
  return HK_OK;
}

static const struct {
  const char *version;
  int n;
  uint32_t nslots;
} groups[] = {{"twelve", 3, 4}, {"eleven", 2, 16}, {"ten", 5, 2}, {"nine", 2, 32}, {"eight", 4, 8}};

TEST_LOOP(carries_all_kinds, HK_ARRAY_LENGTH(groups)) {
  const int before = open_fds(), kinds_there = strcmp(groups[_i].version, "nine") ? KINDS : 2;
  char why[160];
  n = groups[_i].n;
  use(groups[_i].version);
  for (int i = 0; i < n; i++) {
    begin(i, groups[_i].nslots, SLOT);
    const hk_collnet_fact *f = &facts[ranks[i]];
    ck_assert_msg(members[i].state != NULL, "%s", f->why);
    ck_assert_int_eq(f->calls, kinds_there == 2 ? 0 : HK_COLLNET_GATHERS | HK_COLLNET_SCATTERS);
    ck_assert_str_eq(f->name, "Adder");
    ck_assert(f->sums & hk_collnet_sum(HK_F32, HK_SUM) && f->sums & hk_collnet_sum(HK_BF16, HK_MAX));
    ck_assert(!(f->sums & hk_collnet_sum(HK_BF16, HK_PROD)) && !(f->sums & hk_collnet_sum(HK_F16, HK_SUM)));
    ck_assert(!hk_transport_collnet.reachable(members[i].state, 2, why, sizeof why));
    ck_assert_int_eq(open_link(i, 0, neighbour(i, 0), &members[i].links[0]), HK_ERR_INTERNAL); /* not connected */
  }
  connect_all();
  for (int i = 0; i < n; i++) ck_assert_msg(members[i].good, "%s", members[i].why);
  for (int k = 0; k < kinds_there; k++) {
    hk_link l;
    bool moved = false;
    if (n > 2) ck_assert_int_eq(open_link(0, k, neighbour(0, k + 1), &l), HK_ERR_INTERNAL); /* no neighbour there */
    if (k % 2 == 0) open_all(k, k + 1);
    for (int i = 0; i < n; i++) /* half of it is there */
      ck_assert_int_eq(hk_transport_collnet.proxied->progress(members[i].state, &moved), HK_OK);
    ck_assert(!moved);
    if (k % 2) open_all(k, k + 1);
    ck_assert_int_eq(open_link(0, k, neighbour(0, k), &l), HK_ERR_INTERNAL); /* it is open */
  }
  for (int k = 0; k < kinds_there; k += 2) /* the example's ranks must ask for the same things in the same order */
    ck_assert_int_eq(run(k, k + 2, 40), HK_OK);
  detach_all();
  ck_assert_int_eq(open_fds(), before);
}

/* A round's blocks have so much room together. */
TEST(bounds_rounds) {
  n = 2;
  use("twelve");
  for (int i = 0; i < n; i++) begin(i, 2, HK_COLLNET_ROUND_BYTES);
  connect_all();
  open_all(2, 4);
  for (int round = 0; round < 2; round++) {
    const uint32_t bytes = HK_COLLNET_ROUND_BYTES / 2 + 4 * (uint32_t)round;
    for (int i = 0; i < n; i++) {
      memset(hk_link_send_buffer(&members[i].links[2], bytes), i + 1, bytes);
      hk_link_publish(&members[i].links[2], bytes, 5, 0);
    }
    for (int slots = 0; slots < 2 && !round;) {
      bool moved = false;
      for (int i = 0; i < n; i++)
        ck_assert_int_eq(hk_transport_collnet.proxied->progress(members[i].state, &moved), HK_OK);
      if (!hk_link_can_recv(&members[0].links[3])) continue;
      const char *data = hk_link_recv_data(&members[0].links[3]);
      ck_assert(hk_link_recv_slot(&members[0].links[3])->bytes == bytes && data[0] == slots + 1);
      ck_assert_int_eq(data[bytes - 1], ++slots);
      hk_link_release(&members[0].links[3]);
    }
  }
  bool moved = false;
  ck_assert_int_eq(hk_transport_collnet.proxied->progress(members[0].state, &moved), HK_ERR_INTERNAL);
  detach_all();
}

/* ---- plugins that do not work ---- */

static const struct {
  const char *name, *value, *words;
} faulty[] = {{"HOCKET_TEST_COLLNET", "init", "init fails with code 2"},
              {"HOCKET_TEST_COLLNET", "none", "no device that adds up host memory"},
              {"HOCKET_TEST_COLLNET", "refuse", "adds up no type"},
              {"HOCKET_TEST_NET", "listen", "listen fails with code 2"},
              {"HOCKET_TEST_NET", "gpu-only", "no device that adds up host memory"},
              {"NCCL_NET_PLUGIN", "none", "no library of NCCL_NET_PLUGIN has a CollNet plugin"}};

TEST_LOOP(says_why_it_does_without, HK_ARRAY_LENGTH(faulty)) {
  const int before = open_fds();
  n = 1;
  use("twelve");
  set_param(faulty[_i].name, faulty[_i].value);
  facts[ranks[0]].sums = 1;
  begin(0, 4, SLOT);
  ck_assert_ptr_null(members[0].state);
  ck_assert_uint_eq(facts[ranks[0]].sums, 0);
  ck_assert_msg(strstr(facts[ranks[0]].why, faulty[_i].words), "%s", facts[ranks[0]].why);
  const int own = _i == 3; /* the example's */
  if (own) leftovers_ignore();
  ck_assert_int_le(open_fds(), before + own);
}

static const struct {
  const char *fault;
  int kind; /* of the links that are used; -1: connect fails */
} failing[] = {{"connect", -1}, {"iallreduce", 0}, {"iallgather", 2}, {"ireducescatter", 4}, {"test", 0}, {"test", 2}};

TEST_LOOP(reports_a_call_that_fails, HK_ARRAY_LENGTH(failing)) {
  const int kind = failing[_i].kind;
  n = 2;
  use("twelve");
  set_param("HOCKET_TEST_COLLNET", failing[_i].fault);
  for (int i = 0; i < n; i++) begin(i, 4, SLOT);
  connect_all();
  for (int i = 0; i < n; i++) ck_assert_int_eq(members[i].good, kind >= 0);
  if (kind < 0) {
    ck_assert_msg(strstr(members[0].why, "connect fails with code"), "%s", members[0].why);
  } else {
    open_all(kind, kind + 2);
    ck_assert_int_eq(run(kind, kind + 2, 40), HK_ERR_SYSTEM);
    ck_assert_msg(strstr(hk_last_error(), failing[_i].fault) && strstr(hk_last_error(), "Adder"), "%s",
                  hk_last_error());
  }
  detach_all();
}

/* Trouble with another rank fails the links, so that this rank's lanes ask why. */
TEST_RANGE(fails_links_of_lost_ranks, 1, 3) {
  hk_status rc = HK_OK;
  bool moved = false;
  n = 2;
  use("twelve");
  for (int i = 0; i < n; i++) begin(i, 4, SLOT);
  connect_all();
  open_all(0, KINDS);
  for (int k = 0; k < KINDS; k++) hk_transport_collnet.close(&members[1].links[k]);
  memset(members[1].links, 0, sizeof members[1].links);
  hk_transport_collnet.detach(members[1].state);
  members[0].sent[2] = 2; /* a slot, or the first ones, that are not empty */
  members[0].sent[4] = 2 * 2;
  for (int i = 0; i < _i; i++) send_one(&members[0], _i * 2);
  for (int i = 0; i < 1000000 && rc == HK_OK; i++)
    rc = hk_transport_collnet.proxied->progress(members[0].state, &moved);
  ck_assert_int_eq(rc, _i ? HK_ERR_REMOTE : HK_OK);
  for (int k = 1; k < KINDS; k += 2)
    ck_assert_int_eq(atomic_load(&members[0].links[k].state), _i ? HK_LINK_FAILED : HK_LINK_READY);
  n = 1;
  detach_all();
}

int main(void) { return suite_main("collnet", .timeout = 60); }
