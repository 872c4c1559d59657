/* SPDX-License-Identifier: Apache-2.0 */
/* Explains a choice in words. It knows no algorithm: every sentence follows from the model's numbers. */
#include <stdarg.h>
#include <stdlib.h>
#include "../collectives/algorithm.h"
#include "../decide/machine.h"
#include "../decide/protocol.h"
#include "../program/quantised.h"
#include "inputs.h"
#include "machine.h"
#include "plan.h"
#include "tools.h"

static void plan_words_say(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A paragraph: one line, which the caller wraps. */
static void plan_words_say(FILE *to, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vfprintf(to, format, args);
  va_end(args);
  fputc('\n', to);
}

static const char *plan_words_name_of(const hk_plan_report *r, const hk_decision *d, char *text) {
  bool one = (r->world->machine.protocols & (r->world->machine.protocols - 1)) == 0; /* no protocol to choose */
  snprintf(text, HK_LABEL, one ? "%s" : "%s with %s", d->algorithm->name, hk_protocols[d->protocol].name);
  return text;
}

/* The cheapest alternative of another algorithm. */
static const hk_alternative *plan_words_runner_up(const hk_plan_report *r) {
  for (int i = 0; i < r->n; i++)
    if (!r->rows[i].why && r->rows[i].what.algorithm != r->chosen.algorithm) return &r->rows[i];
  return NULL;
}

/* The parts of the time. */
static void plan_words_say_balance(const hk_plan_report *r, FILE *to) {
  double latency = hk_plan_latency(r, &r->chosen), all = r->chosen.us, part = all > 0 ? latency / all : 1;
  char total[32], fixed[32], rest[32], size[32];
  hk_tool_time(total, all);
  hk_tool_time(fixed, latency);
  hk_tool_time(rest, all - latency);
  hk_tool_bytes(size, r->bytes);
  if (part > 0.7)
    plan_words_say(
        to,
        "%s is a short message here: of the %s, an empty message takes %s. That is latency: "
        "starting, and messages that must follow one another. So the algorithm with the fewest messages one after "
        "another is the fastest, even if they carry more bytes.",
        size, total, fixed);
  else if (part < 0.3)
    plan_words_say(
        to,
        "%s is a long message here: of the %s, %s is spent on moving bytes and only %s on latency (starting, and "
        "messages that must follow one another). So the algorithm that moves the fewest bytes over the slowest link is "
        "the fastest, even if it takes more steps.",
        size, total, rest, fixed);
  else
    plan_words_say(
        to,
        "%s is neither short nor long here: of the %s, %s is latency (starting, and messages that must follow one "
        "another) and %s is spent on moving bytes. The choice is a compromise between few steps and few bytes.",
        size, total, fixed, rest);
}

/* The slow links, and the reason for several channels. */
static void plan_words_say_links(const hk_plan_report *r, FILE *to) {
  const hk_machine *m = &r->world->machine;
  double inside = m->inside.ring_us_per_b, between = m->between.ring_us_per_b;
  if (m->team.nhosts > 1 && m->team.ranks_per_host > 1 && inside > 0 && between > 0) {
    double in = 1 / inside / 1000, out = 1 / between / 1000;
    const char *narrow = in > 1.1 * out ? "between hosts" : out > 1.1 * in ? "inside the hosts" : NULL;
    if (narrow)
      plan_words_say(
          to,
          "The narrow links are those %s: the ranks of a host together get %.3g GB/s out of it, and each %.3g GB/s to "
          "its neighbour inside.",
          narrow, out, in);
  }
  if (r->chosen.channels > 1 && m->channel_us_per_b > 0)
    plan_words_say(
        to, "One channel moves at most %.3g GB/s here, so the message is cut into %d parts that move side by side.",
        1 / m->channel_us_per_b / 1000, r->chosen.channels);
}

static void plan_words_say_runner_up(const hk_plan_report *r, const hk_alternative *other, FILE *to) {
  char name[HK_LABEL], a[32], b[32];
  double mine = hk_plan_latency(r, &r->chosen), its = hk_plan_latency(r, &other->what);
  double my_bytes = r->chosen.us - mine, its_bytes = other->what.us - its;
  double more = other->what.us / r->chosen.us - 1;
  plan_words_name_of(r, &other->what, name);
  hk_tool_time(a, other->what.us);
  if (more < 0) {
    plan_words_say(to, "%s would be faster (%s), but see above.", name, a);
    return;
  }
  if (more < 0.02) {
    plan_words_say(to, "The next best, %s, is almost equal (%s).", name, a);
    return;
  }
  char text[400];
  int n = snprintf(text, sizeof text, "The next best, %s, would take %s (%.0f%% more): ", name, a, 100 * more);
  if (its < 0.98 * mine && its_bytes > my_bytes)
    snprintf(text + n, sizeof text - (size_t)n, "it saves %s of latency, but moving the bytes takes it %s longer.",
             hk_tool_time(a, mine - its), hk_tool_time(b, its_bytes - my_bytes));
  else if (its_bytes < 0.98 * my_bytes && its > mine)
    snprintf(text + n, sizeof text - (size_t)n, "it moves the bytes %s faster, but has %s more latency.",
             hk_tool_time(a, my_bytes - its_bytes), hk_tool_time(b, its - mine));
  else if (its - mine > its_bytes - my_bytes)
    snprintf(text + n, sizeof text - (size_t)n, "it has more messages that follow one another.");
  else
    snprintf(text + n, sizeof text - (size_t)n, "it moves more bytes, or over slower links.");
  plan_words_say(to, "%s", text);
}

/* The chosen algorithm with its other protocols. */
static void plan_words_say_protocols(const hk_plan_report *r, FILE *to) {
  const hk_alternative *best = NULL;
  for (int i = 0; i < r->n; i++) {
    const hk_alternative *a = &r->rows[i];
    if (a->why || a->what.algorithm != r->chosen.algorithm || a->what.protocol == r->chosen.protocol) continue;
    if (!best) best = a;
  }
  if (!best || best->what.us <= r->chosen.us) return;
  char a[32];
  plan_words_say(to, "Protocol %s is %s. With %s, the second best for this algorithm, it would take %s.",
                 hk_protocols[r->chosen.protocol].name, hk_protocols[r->chosen.protocol].about,
                 hk_protocols[best->what.protocol].name, hk_tool_time(a, best->what.us));
}

/* The choices for shorter and longer messages. */
static void plan_words_say_neighbours(const hk_plan_report *r, FILE *to) {
  size_t bytes = HK_PLAN_LEAST;
  char size[32], name[HK_LABEL];
  hk_decision here, other;
  while (bytes < r->bytes && bytes < HK_PLAN_MOST) bytes *= 2;
  if (hk_inputs_choose(r->world, r->coll, bytes, &here) != HK_OK) return;
  const size_t less = hk_plan_change(r->world, r->coll, bytes, &here, false, &other);
  if (less)
    plan_words_say(to, "Messages up to %s take %s instead.", hk_tool_bytes(size, less),
                   plan_words_name_of(r, &other, name));
  const size_t more = hk_plan_change(r->world, r->coll, bytes, &here, true, &other);
  if (more) plan_words_say(to, "From %s on it is %s.", hk_tool_bytes(size, more), plan_words_name_of(r, &other, name));
}

/* The order of sums, if it matters. */
static void plan_words_say_order(const hk_plan_report *r, FILE *to) {
  if (hk_coll_reduces(r->coll) && r->world->filter.batch_invariant)
    plan_words_say(
        to, "HOCKET_BATCH_INVARIANT is set: only algorithms that add in the order of ranks are considered, so that the "
            "bits of an element depend neither on the size of the message nor on the element's place in it.");
}

/* The error of quantised values. */
static void plan_words_say_error(const hk_plan_report *r, FILE *to) {
  if (r->world->machine.quantised)
    plan_words_say(
        to,
        "Links carry float32 as 8 bits and a scale for each %d values. A value is rounded once before it is "
        "added, and the sum once. So the error of a sum is at most 1/%.0f (%.1f%%) of the sum, over all ranks, "
        "of the largest magnitude among a rank's values at most %d places away.",
        HK_QUANTISED_BLOCK, 1 / HK_QUANTISED_ERROR, 100 * HK_QUANTISED_ERROR, HK_QUANTISED_BLOCK - 1);
}

static void plan_words_explain(const hk_plan_report *r, FILE *to) {
  if (r->world->nranks < 2) {
    plan_words_say(to, "One rank alone copies its input to its output.");
    return;
  }
  const size_t last = hk_size_class_last(r->bytes);
  char size[32];
  if (r->chosen.note) plan_words_say(to, "This is not simply the cheapest: %s.", r->chosen.note);
  if (!r->chosen.note && last != r->bytes)
    plan_words_say(to, "Sizes up to %s have this decision: at that size it is the cheapest.",
                   hk_tool_bytes(size, last));
  plan_words_say_balance(r, to);
  plan_words_say(to, "How %s works: %s.", r->chosen.algorithm->name, r->chosen.algorithm->about);
  plan_words_say_links(r, to);
  if (!r->world->machine.team.overlap) plan_words_say(to, "%s.", r->chosen.payload.why);
  plan_words_say(to, "%s.", r->chosen.executor_why);
  plan_words_say_order(r, to);
  plan_words_say_error(r, to);
  const hk_alternative *other = plan_words_runner_up(r);
  if (other)
    plan_words_say_runner_up(r, other, to);
  else
    plan_words_say(to, "No other algorithm can do this here.");
  plan_words_say_protocols(r, to);
  plan_words_say_neighbours(r, to);
}

char *hk_plan_explain(const hk_plan_report *r) {
  char *text = NULL;
  size_t bytes;
  FILE *to = open_memstream(&text, &bytes);
  if (!to) return NULL;
  plan_words_explain(r, to);
  if (fclose(to) == 0) return text;
  free(text);
  return NULL;
}
