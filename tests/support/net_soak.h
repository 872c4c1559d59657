/* SPDX-License-Identifier: Apache-2.0 */
/* Messages of chosen sizes both ways between two ranks of one thread, whose steps come in a random order that each run
 * repeats: at any step, messages are under way in every state. */
#ifndef HK_TESTS_NET_SOAK_H
#define HK_TESTS_NET_SOAK_H
#include "../../src/program/program.h"
#include "net_streams.h"

typedef struct soak {
  net_world *w;
  const uint32_t *sizes; /* of messages, which take turns */
  uint32_t nsizes, most; /* most: the largest of them */
  unsigned count;        /* messages each way */
  bool by_ref, want, one_way;
  void (*between)(void); /* called between two steps; may be NULL */
  uint32_t seed;
} soak;

typedef struct soak_side {
  hk_link *send, *recv;
  unsigned sent, got;
  unsigned char *out; /* a buffer for each slot, and one more */
} soak_side;

static inline uint32_t soak_size(const soak *s, int from, unsigned i) {
  return s->sizes[(mix(i + s->seed) + (unsigned)from) % s->nsizes];
}

static inline void soak_send(const soak *s, soak_side *t, int me) {
  const uint32_t bytes = soak_size(s, me, t->sent);
  if (t->sent == s->count || !hk_link_can_send(t->send, 0)) return;
  unsigned char *buffer = t->out + t->sent % (s->w->ranks[me].env.nslots + 1) * (size_t)(s->most + 1);
  fill(buffer, bytes, t->sent + 7 * (unsigned)me);
  ck_assert(net_try_send(t->send, buffer, bytes, 1000 + t->sent, s->by_ref));
  t->sent++;
}

static inline void soak_receive(const soak *s, soak_side *t, int me, unsigned char *in) {
  uint32_t bytes, signature, expected = soak_size(s, 1 - me, t->got);
  bool direct;
  if (t->got == s->count || !net_try_recv(t->recv, in, expected, s->want, &bytes, &signature, &direct)) return;
  ck_assert_uint_eq(bytes, expected);
  ck_assert_uint_eq(signature, 1000 + t->got);
  ck_assert_msg(filled(in, bytes, t->got + 7 * (unsigned)(1 - me)), "message %u of %u bytes is wrong", t->got, bytes);
  t->got++;
}

static inline void run_soak(const soak *s) {
  enum { STEPS = 3000000 };
  soak_side t[2] = {{0}};
  unsigned char *in[2];
  uint32_t step = 0;
  bool over = false;
  for (int i = 0; i < 2; i++) {
    t[i].out = malloc((s->w->ranks[i].env.nslots + 1) * (size_t)(s->most + 1));
    in[i] = malloc(s->most + 1); /* of each side: a receiver may have said that it wants a message there */
    if (!i || !s->one_way) t[i].send = net_link(&s->w->ranks[i], 1 - i, HK_LINK_SEND, 3);
    if (i || !s->one_way) t[i].recv = net_link(&s->w->ranks[i], 1 - i, HK_LINK_RECV, 3);
    if (!t[i].send) t[i].sent = s->count;
    if (!t[i].recv) t[i].got = s->count;
  }
  for (; !over && step < STEPS; step++) {
    const uint32_t what = mix(step + s->seed * 77777);
    const int me = (int)(what & 1);
    if ((what >> 1 & 7) < 2 && t[me].send) soak_send(s, &t[me], me);
    if ((what >> 1 & 7) == 2 && t[me].recv) soak_receive(s, &t[me], me, in[me]);
    if ((what >> 1 & 7) > 2) ck_assert_msg(net_progress(&s->w->ranks[me], NULL) == HK_OK, "%s", hk_last_error());
    if (s->between) s->between();
    over = true;
    for (int i = 0; i < 2; i++)
      over = over && t[i].sent == s->count && t[i].got == s->count && (!t[i].send || hk_link_drained(t[i].send));
  }
  ck_assert_msg(over, "%u and %u messages were sent, %u and %u came", t[0].sent, t[1].sent, t[1].got, t[0].got);
  for (int i = 0; i < 2; i++) {
    if (t[i].send) net_unlink(t[i].send);
    if (t[i].recv) net_unlink(t[i].recv);
    free(t[i].out);
    free(in[i]);
  }
}
#endif
