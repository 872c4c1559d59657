/* SPDX-License-Identifier: Apache-2.0 */
/* The order in which sums are made. verify_value.c keeps which block and ranks a sum holds; here its parts are kept in
 * the order of the instruction that added them. So two sums with one number are one expression, rounded at the same
 * places. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "verify_internal.h"

const char *hk_order_name(hk_order o) {
  static const char *const names[] = {
      [HK_ORDER_VARIES] = "varies", [HK_ORDER_SIDES] = "sides", [HK_ORDER_EQUAL] = "equal", [HK_ORDER_FIXED] = "fixed"};
  return names[o];
}

/* ---- the store ---- */

void hk_orders_free(hk_orders *o) {
  free(o->ends);
  free(o->parts);
  free(o->table);
  memset(o, 0, sizeof *o);
}

/* Room for one more. */
#define GROW(o, array, capacity, used)                                                                                 \
  (((used) < HK_NO_ORDER / 2 && HK_RESERVE((o)->array, (o)->capacity, (used) + 1)) || ((o)->failed = true, false))

void hk_orders_part(hk_orders *o, uint32_t part) {
  if (GROW(o, parts, parts_capacity, o->nparts)) o->parts[o->nparts++] = part;
}

static uint32_t verify_order_begin_of(const hk_orders *o, uint32_t sum) { return sum ? o->ends[sum - 1] : 0; }

static uint32_t verify_order_hash(const uint32_t *parts, uint32_t n) {
  uint64_t h = n;
  for (uint32_t k = 0; k < n; k++) h = (h ^ parts[k]) * 0x9e3779b97f4a7c15u, h ^= h >> 32;
  return (uint32_t)h;
}

/* The index in the table of the `n` parts from `begin` on, or of the free entry for them. */
static uint32_t verify_order_place_of(const hk_orders *o, uint32_t begin, uint32_t n) {
  uint32_t at = verify_order_hash(o->parts + begin, n) & (o->table_capacity - 1);
  for (; o->table[at]; at = (at + 1) & (o->table_capacity - 1)) {
    uint32_t other = o->table[at] - 1, first = verify_order_begin_of(o, other);
    if (o->ends[other] - first == n && !memcmp(o->parts + first, o->parts + begin, n * sizeof *o->parts)) break;
  }
  return at;
}

/* Keeps the table at most half full. */
static bool verify_order_grow_table(hk_orders *o) {
  if (2 * o->count < o->table_capacity) return true;
  uint32_t capacity = o->table_capacity ? o->table_capacity * 2 : 1024;
  uint32_t *fresh = calloc(capacity, sizeof *fresh);
  if (!fresh) { /* out of memory */
    o->failed = true;
    return false;
  }
  free(o->table);
  o->table = fresh;
  o->table_capacity = capacity;
  for (uint32_t k = 0; k < o->count; k++) {
    uint32_t begin = verify_order_begin_of(o, k);
    o->table[verify_order_place_of(o, begin, o->ends[k] - begin)] = k + 1;
  }
  return true;
}

uint32_t hk_orders_sum(hk_orders *o) {
  uint32_t begin = verify_order_begin_of(o, o->count);
  if (o->failed || !verify_order_grow_table(o) || !GROW(o, ends, ends_capacity, o->count)) return HK_NO_ORDER;
  uint32_t at = verify_order_place_of(o, begin, o->nparts - begin);
  if (o->table[at]) {
    o->nparts = begin;
  } else {
    o->ends[o->count] = o->nparts;
    o->table[at] = ++o->count;
  }
  return o->nranks + o->table[at] - 1;
}

/* ---- what is compared ---- */

/* The number of the fixed order (HK_FIXED_ORDER_SOURCES). */
static uint32_t verify_order_fixed_order(hk_orders *o) {
  uint32_t sum = 0;
  for (uint32_t r = 1; r < o->nranks;) {
    hk_orders_part(o, sum);
    for (uint32_t k = 1; k < HK_FIXED_ORDER_SOURCES && r < o->nranks; k++) hk_orders_part(o, r++);
    sum = hk_orders_sum(o);
  }
  return sum;
}

/* A number for each sum, equal for sums that differ only in the sides of additions. An instruction adds its first
 * two sources, then the others to the result, so only these two can change sides. In the store, a sum's parts
 * precede it. */
static uint32_t *verify_order_without_sides(hk_orders *o) {
  uint32_t n = o->count, *out = calloc((size_t)n + 1, sizeof *out);
  o->failed = o->failed || !out;
  for (uint32_t k = 0; out && k < n; k++) {
    uint32_t begin = verify_order_begin_of(o, k), end = o->ends[k], first[2];
    for (uint32_t i = begin; i < end; i++) {
      uint32_t part = o->parts[i];
      if (part >= o->nranks) part = out[part - o->nranks];
      if (i - begin < 2) first[i - begin] = part;
      if (i == begin) continue;
      if (i == begin + 1) hk_orders_part(o, first[0] < first[1] ? first[0] : first[1]);
      if (i == begin + 1) part = first[0] < first[1] ? first[1] : first[0];
      hk_orders_part(o, part);
    }
    out[k] = hk_orders_sum(o);
  }
  return out;
}

/* ---- words ---- */

static void verify_order_put_order(const hk_orders *o, uint32_t order, FILE *to) {
  if (order < o->nranks) {
    fprintf(to, "%u", order);
    return;
  }
  uint32_t sum = order - o->nranks, begin = verify_order_begin_of(o, sum);
  for (uint32_t k = begin; k < o->ends[sum]; k++) {
    bool inner = o->parts[k] >= o->nranks;
    fputs(k > begin ? inner ? " + (" : " + " : inner ? "(" : "", to);
    verify_order_put_order(o, o->parts[k], to);
    if (inner) fputc(')', to);
  }
}

/* "((1 + 2) + 3) + 0", cut if it is too long. */
enum { ORDER_TEXT = 100 };
static const char *order_text(const hk_orders *o, uint32_t order, char *text) {
  text[0] = 0;
  FILE *f = fmemopen(text, ORDER_TEXT, "w");
  if (!f) return text;
  verify_order_put_order(o, order, f);
  fclose(f);
  text[ORDER_TEXT - 1] = 0;
  if (strlen(text) == ORDER_TEXT - 1) memcpy(text + ORDER_TEXT - 4, "...", 3);
  return text;
}

/* ---- the check ---- */

static hk_status verify_order_wrong_order(hk_verifier *v, int rank, unsigned block, const hk_place *place,
                                          uint32_t wanted) {
  char is[ORDER_TEXT], wants[ORDER_TEXT];
  return hk_fault_event(v, &v->threads[v->first_thread[rank] + place->writer_lane], place->writer_event,
                        "it leaves in out[b%u] the ranks' sum %s, not %s", block,
                        order_text(&v->orders, hk_value_order(&v->sets, place->value), is),
                        order_text(&v->orders, wanted, wants));
}

/* The first output whose order is not `wanted`; NULL if there is none. Orders with the same `number` count as one
 * (`number` may be NULL). */
static const hk_place *verify_order_find_other(const hk_verifier *v, uint32_t wanted, const uint32_t *number, int *rank,
                                               unsigned *block) {
  for (*rank = 0; *rank < v->nranks; ++*rank) {
    unsigned blocks = hk_out_blocks_of(v, *rank);
    const hk_place *place = v->places + v->first_place[*rank];
    for (unsigned k = 0; k < blocks * v->options.waves; k++, place++) {
      uint32_t order = hk_value_order(&v->sets, place->value);
      *block = k % blocks;
      if (number && order >= v->orders.nranks) order = number[order - v->orders.nranks];
      if (order != wanted) return place;
    }
  }
  return NULL;
}

hk_status hk_verify_orders(hk_verifier *v) {
  hk_orders *o = &v->orders;
  hk_status rc = HK_OK;
  uint32_t fixed = verify_order_fixed_order(o), first, *number = NULL;
  unsigned block;
  int rank = 0;
  if (v->switch_adds)
    return v->options.least > HK_ORDER_VARIES
               ? hk_fault(v, 0, -1, -1, "a switch adds its sums, in an order that is not known")
               : HK_OK;
  while (!hk_out_blocks_of(v, rank)) rank++;
  first = hk_value_order(&v->sets, v->places[v->first_place[rank]].value);
  if (!o->failed && !verify_order_find_other(v, fixed, NULL, &rank, &block))
    v->report->order = HK_ORDER_FIXED;
  else if (!o->failed && !verify_order_find_other(v, first, NULL, &rank, &block))
    v->report->order = HK_ORDER_EQUAL;
  else if (!o->failed && (number = verify_order_without_sides(o)) && !o->failed &&
           !verify_order_find_other(v, number[first - o->nranks], number, &rank, &block))
    v->report->order = HK_ORDER_SIDES;
  if (o->failed) {
    rc = hk_fault_memory(v);
  } else if (v->report->order < v->options.least) {
    bool one = v->options.least == HK_ORDER_FIXED;
    const hk_place *place = verify_order_find_other(v, one ? fixed : first, NULL, &rank, &block);
    rc = verify_order_wrong_order(v, rank, block, place, one ? fixed : first);
  }
  free(number);
  return rc;
}
