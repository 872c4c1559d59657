/* SPDX-License-Identifier: Apache-2.0 */
/* Streams of messages between ranks that are threads, each message checked: for the tests of the network's
 * providers. */
#ifndef HK_TESTS_NET_STREAMS_H
#define HK_TESTS_NET_STREAMS_H
#include "net_world.h"
#include "suite.h"

static inline uint32_t mix(uint32_t x) { /* a hash, for sizes and contents that both sides know */
  x ^= x >> 16;
  x *= 0x7feb352du;
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

/* Byte i of a message is seed + 7 i + i / 256. It repeats after 64 KiB, and a seed is a place to begin: messages are
 * copied from and compared with this table. */
enum { DATA_PERIOD = 65536 };
static unsigned char message_data[DATA_PERIOD];
__attribute__((constructor)) static void make_message_data(void) {
  for (uint32_t i = 0; i < DATA_PERIOD; i++) message_data[i] = (unsigned char)(i * 7 + (i >> 8));
}

/* The piece at byte `at` of a message: where its data are, and how many of `left` bytes are there. */
static inline const unsigned char *data_piece(uint32_t at, uint32_t seed, uint32_t *left) {
  const uint32_t begin = (at + (seed & 255) * 256) % DATA_PERIOD;
  if (*left > DATA_PERIOD - begin) *left = DATA_PERIOD - begin;
  return message_data + begin;
}
static inline void fill(unsigned char *p, uint32_t bytes, uint32_t seed) {
  for (uint32_t at = 0, n; at < bytes; at += n) {
    n = bytes - at;
    const unsigned char *piece = data_piece(at, seed, &n);
    memcpy(p + at, piece, n);
  }
}
static inline bool filled(const unsigned char *p, uint32_t bytes, uint32_t seed) {
  for (uint32_t at = 0, n; at < bytes; at += n) {
    n = bytes - at;
    const unsigned char *piece = data_piece(at, seed, &n);
    if (memcmp(p + at, piece, n)) return false;
  }
  return true;
}

typedef struct stream {
  net_rank *rank;
  int peer, channel;
  unsigned count; /* messages each way */
  uint32_t most;  /* bytes of the largest */
  bool by_ref, want, both;
  unsigned char
      *places; /* registered memory for all messages that come, `most` + 1 bytes each: announced ahead; NULL: none */
  void (*before)(unsigned i); /* called before message i is sent; may be NULL */
  unsigned direct;            /* messages that came straight to their place */
  hk_status rc;
  char error[512];
} stream;

/* Runs of small ones, of one size, and of anything. */
static inline uint32_t size_of(const stream *t, int from, unsigned i) {
  uint32_t h = mix((uint32_t)from * 7919u + i + (uint32_t)t->channel * 31u);
  switch ((i / 16) % 4) {
    case 0: return h % 100;
    case 1: return t->most;
    case 2: return h % (t->most + 1);
    default: return (h % 4) * 24;
  }
}

static inline void offer_ahead(stream *t, hk_link *recv) {
  for (; recv->offered < t->count && hk_link_may_post_target(recv); recv->offered++) {
    uint32_t bytes = size_of(t, t->peer, (unsigned)recv->offered);
    if (hk_link_places(recv, bytes))
      hk_link_post_target(recv, recv->offered, t->places + recv->offered * (t->most + 1), bytes);
  }
}

/* Sends and receives `count` messages at once, progressing by hand as the executor does. */
static inline void *run_stream(void *arg) {
  stream *t = arg;
  int me = t->rank->rank;
  hk_link *send = NULL, *recv = NULL;
  t->rc = HK_OK;
  /* The peer may have failed already, and reported it, before we begin. */
  if (t->both || me < t->peer) t->rc = net_try_link(t->rank, t->peer, HK_LINK_SEND, t->channel, &send);
  if (t->rc == HK_OK && (t->both || me > t->peer))
    t->rc = net_try_link(t->rank, t->peer, HK_LINK_RECV, t->channel, &recv);
  unsigned sent = send ? 0 : t->count, got = recv ? 0 : t->count;
  /* By reference every message needs memory of its own until its credit is back: as many as there are slots. */
  size_t nbuf = t->rank->env.nslots + 1;
  unsigned char *out = malloc(nbuf * (t->most + 1)), *in = malloc(t->most + 1);
  hk_waiter w;
  hk_wait_begin(&w, &t->rank->wait);
  while (t->rc == HK_OK && (sent < t->count || got < t->count || (send && !hk_link_drained(send)))) {
    bool moved = false;
    if (sent < t->count && hk_link_can_send(send, 0)) {
      unsigned char *buffer = out + (sent % nbuf) * (t->most + 1);
      uint32_t bytes = size_of(t, me, sent);
      if (t->before) t->before(sent);
      fill(buffer, bytes, sent);
      ck_assert(net_try_send(send, buffer, bytes, 1000 + sent, t->by_ref));
      sent++;
      moved = true;
    }
    uint32_t bytes, signature;
    bool direct;
    uint32_t expected = size_of(t, t->peer, got);
    unsigned char *to = t->places ? t->places + got * (size_t)(t->most + 1) : in;
    if (t->places && recv) offer_ahead(t, recv);
    if (got < t->count && net_try_recv(recv, to, expected, t->want, &bytes, &signature, &direct)) {
      ck_assert_uint_eq(bytes, expected);
      ck_assert_uint_eq(signature, 1000 + got);
      ck_assert_msg(filled(to, bytes, got), "message %u of %u bytes is wrong", got, bytes);
      t->direct += direct;
      got++;
      moved = true;
    }
    bool wire;
    t->rc = net_progress(t->rank, &wire);
    if (t->rc != HK_OK) break;
    if (moved || wire)
      hk_wait_progress(&w);
    else if ((t->rc = hk_wait_pause(&w)) != HK_OK)
      break;
  }
  if (t->rc != HK_OK) snprintf(t->error, sizeof t->error, "%s", hk_last_error());
  if (send) net_unlink(send);
  if (recv) net_unlink(recv);
  free(out);
  free(in);
  return NULL;
}

/* Runs all of them, to their ends. */
static inline void try_streams(net_world *w, stream *t, int n) {
  pthread_t threads[NET_RANKS * NET_RANKS];
  for (int i = 0; i < w->n; i++)
    w->ranks[i].wait = (hk_wait_env){.spins = 50, .deadline_ns = hk_now_ns() + 60000000000u};
  for (int i = 0; i < n; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, run_stream, &t[i]), 0);
  for (int i = 0; i < n; i++) pthread_join(threads[i], NULL);
}
static inline void run_streams(net_world *w, stream *t, int n) {
  try_streams(w, t, n);
  for (int i = 0; i < n; i++) ck_assert_msg(t[i].rc == HK_OK, "stream %d: %s", i, t[i].error);
}
#endif
