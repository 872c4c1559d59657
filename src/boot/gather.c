/* SPDX-License-Identifier: Apache-2.0 */
/* All links of the overlay, and the collectives over them: allgathers (Bruck) and barriers (dissemination). */
#include <stdlib.h>
#include <string.h>
#include "internal.h"

hk_status hk_overlay_open_all(hk_bootstrap *b, bool doubling) {
  hk_message *m = NULL;
  hk_wait_env env = hk_report_begin(b, hk_report_bounded(b));
  for (int k = 0; k < b->rounds; k++) {
    HK_OR_RETURN(hk_overlay_connect(b, k, &env));
    if (!doubling || k + 1 == b->rounds) continue;
    hk_overlay_link *next = hk_link_to(b, true, k), *previous = hk_link_to(b, false, k);
    HK_OR_RETURN(
        hk_overlay_send(previous, HK_FRAME_CONTACT, 0, hk_contact_of(b, next->rank), HK_CONTACT_BYTES, NULL, 0));
    HK_OR_RETURN(hk_overlay_await(next, HK_FRAME_CONTACT, 0, &env, &m));
    memcpy(hk_contact_of(b, hk_link_to(b, true, k + 1)->rank), m->data, HK_CONTACT_BYTES);
    free(m);
  }
  return HK_OK;
}

/* ---- rows ----
 * Most facts of neighbours are equal, so a message has of each row only the words that differ from the row before it.
 * The first row differs from zeros. A stretch of 64 words is a byte with a bit for each group of 8 words that differs;
 * such a group is a byte with a bit for each word that differs, and then these words. What a row has beyond its last
 * whole word is sent as it is. */

enum { ROWS_WORD = sizeof(uint64_t), ROWS_GROUP = 8 * ROWS_WORD, ROWS_STRETCH = 8 * ROWS_GROUP };
static const uint8_t rows_zeros[ROWS_STRETCH];

/* The most that a row takes in a message, and a word that rows_pack_group may write behind it. */
static size_t rows_most(size_t bytes) { return bytes + bytes / ROWS_GROUP + bytes / ROWS_STRETCH + 2 + ROWS_WORD; }

/* The bytes from `at` on, at most `most`. */
static size_t rows_part(size_t bytes, size_t at, size_t most) { return bytes - at < most ? bytes - at : most; }

static uint8_t *rows_pack_group(uint8_t *out, const uint8_t *row, const uint8_t *before, size_t bytes) {
  uint8_t *differs = out++;
  unsigned bits = 0;
  for (size_t at = 0; at < bytes; at += ROWS_WORD) {
    const bool differ = memcmp(row + at, before + at, ROWS_WORD) != 0;
    memcpy(out, row + at, ROWS_WORD); /* without a branch: which words differ cannot be predicted */
    out += differ ? ROWS_WORD : 0;
    bits |= (unsigned)differ << (at / ROWS_WORD);
  }
  *differs = (uint8_t)bits;
  return out;
}

static uint8_t *rows_pack(uint8_t *out, const uint8_t *row, const uint8_t *before, size_t bytes) {
  const size_t whole = bytes / ROWS_WORD * ROWS_WORD;
  for (size_t at = 0; at < whole; at += ROWS_STRETCH) {
    const size_t stretch = rows_part(whole, at, ROWS_STRETCH);
    const uint8_t *is = row + at, *was = before ? before + at : rows_zeros;
    uint8_t *differs = out++;
    *differs = 0;
    if (!memcmp(is, was, stretch)) continue;
    for (size_t g = 0; g < stretch; g += ROWS_GROUP) {
      const size_t group = rows_part(stretch, g, ROWS_GROUP);
      if (!memcmp(is + g, was + g, group)) continue;
      *differs |= (uint8_t)(1u << g / ROWS_GROUP);
      out = rows_pack_group(out, is + g, was + g, group);
    }
  }
  memcpy(out, row + whole, bytes - whole);
  return out + (bytes - whole);
}

/* Writes the words that differ in a group of `bytes` bytes. Returns its end in the message; NULL: it has none. */
static const uint8_t *rows_unpack_group(const uint8_t *in, const uint8_t *end, uint8_t *row, size_t bytes) {
  if (in == end) return NULL;
  unsigned bits = *in++;
  if (bits >> bytes / ROWS_WORD || (size_t)(end - in) < (size_t)__builtin_popcount(bits) * ROWS_WORD) return NULL;
  for (; bits; bits &= bits - 1, in += ROWS_WORD) memcpy(row + (size_t)__builtin_ctz(bits) * ROWS_WORD, in, ROWS_WORD);
  return in;
}

/* Returns the end of the row in the message; NULL: the message is too short, or has words that a row lacks. */
static const uint8_t *rows_unpack(const uint8_t *in, const uint8_t *end, uint8_t *row, const uint8_t *before,
                                  size_t bytes) {
  const size_t whole = bytes / ROWS_WORD * ROWS_WORD;
  if (before)
    memcpy(row, before, whole);
  else
    memset(row, 0, whole);
  for (size_t at = 0; at < whole; at += ROWS_STRETCH) {
    if (in == end) return NULL;
    for (unsigned bits = *in++; bits; bits &= bits - 1) {
      const size_t g = at + (size_t)__builtin_ctz(bits) * ROWS_GROUP;
      in = g < whole ? rows_unpack_group(in, end, row + g, rows_part(whole, g, ROWS_GROUP)) : NULL;
      if (!in) return NULL;
    }
  }
  if ((size_t)(end - in) < bytes - whole) return NULL;
  memcpy(row + whole, in, bytes - whole);
  return in + (bytes - whole);
}

/* Rows `first`, first + 1, ... of the table, modulo the ranks. */
typedef struct gather_rows {
  uint8_t *table;
  size_t nranks, bytes, first, count;
} gather_rows;
static uint8_t *gather_row(const gather_rows *g, size_t i) { return g->table + (g->first + i) % g->nranks * g->bytes; }

static hk_status gather_send(const gather_rows *g, hk_overlay_link *to, uint64_t seq) {
  uint64_t bytes = g->bytes;
  uint8_t *message = malloc(g->count * rows_most(g->bytes)), *end = message;
  if (!message) return HK_FAIL_ERRNO("no memory for facts of %zu ranks", g->count);
  for (size_t i = 0; i < g->count; i++)
    end = rows_pack(end, gather_row(g, i), i ? gather_row(g, i - 1) : NULL, g->bytes);
  hk_status rc =
      hk_overlay_send(to, HK_FRAME_GATHER, seq, (uint8_t *)&bytes, sizeof bytes, message, (size_t)(end - message));
  free(message);
  return rc;
}

static hk_status gather_receive(const gather_rows *g, hk_overlay_link *from, uint64_t seq, const hk_wait_env *env) {
  hk_status rc = HK_OK;
  uint64_t bytes = 0;
  hk_message *m;
  HK_OR_RETURN(hk_overlay_await(from, HK_FRAME_GATHER, seq, env, &m));
  const uint8_t *at = m->data + sizeof bytes, *end = m->data + m->frame.bytes;
  if (m->frame.bytes >= sizeof bytes) memcpy(&bytes, m->data, sizeof bytes);
  for (size_t i = 0; at && bytes == g->bytes && i < g->count; i++)
    at = rows_unpack(at, end, gather_row(g, i), i ? gather_row(g, i - 1) : NULL, g->bytes);
  if (bytes != g->bytes || at != end)
    rc = HK_FAIL(HK_ERR_REMOTE,
                 "rank %d sent facts of %llu bytes a rank, %zu in all, and here they have %zu for each of %zu ranks: "
                 "all ranks must load the same library",
                 from->rank, (unsigned long long)bytes, (size_t)m->frame.bytes, g->bytes, g->count);
  free(m);
  return rc;
}

/* Before round k a rank has the rows of itself and the 2^k - 1 ranks after it. It sends the rows that the rank 2^k
 * before it still lacks to that rank, and receives the same number from the rank 2^k after it. */
hk_status hk_overlay_gather(hk_bootstrap *b, uint8_t *table, size_t bytes, const hk_wait_env *env) {
  const size_t n = (size_t)b->nranks;
  const uint64_t seq = ++b->gathers;
  for (int k = 0; k < b->rounds; k++) {
    hk_overlay_link *next = hk_link_to(b, true, k), *previous = hk_link_to(b, false, k);
    const size_t have = (size_t)1 << k;
    gather_rows g = {table, n, bytes, (size_t)b->rank, have < n - have ? have : n - have};
    HK_OR_RETURN(gather_send(&g, previous, seq));
    g.first = (size_t)next->rank;
    HK_OR_RETURN(gather_receive(&g, next, seq, env));
  }
  return HK_OK;
}

/* Dissemination: after round k a rank knows that the 2^(k+1) - 1 ranks before it have entered. */
hk_status hk_overlay_barrier(hk_bootstrap *b, const hk_wait_env *env) {
  uint64_t seq = ++b->barriers;
  for (int k = 0; k < b->rounds; k++) {
    hk_message *m;
    HK_OR_RETURN(hk_overlay_send(hk_link_to(b, true, k), HK_FRAME_BARRIER, seq, NULL, 0, NULL, 0));
    HK_OR_RETURN(hk_overlay_await(hk_link_to(b, false, k), HK_FRAME_BARRIER, seq, env, &m));
    free(m);
  }
  return HK_OK;
}

hk_status hk_bootstrap_allgather(hk_bootstrap *b, void *table, size_t bytes) {
  hk_wait_env env = hk_report_begin(b, hk_report_bounded(b));
  return bytes ? hk_overlay_gather(b, table, bytes, &env) : hk_overlay_barrier(b, &env);
}

void hk_bootstrap_skip(hk_bootstrap *b) { b->gathers++; }

void hk_bootstrap_also(hk_bootstrap *b, hk_status (*check)(void *arg), void *arg) {
  b->call.also = check;
  b->call.also_arg = arg;
}

hk_status hk_bootstrap_barrier(hk_bootstrap *b) { return hk_bootstrap_allgather(b, NULL, 0); }
