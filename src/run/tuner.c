/* SPDX-License-Identifier: Apache-2.0 */
/* Loads NCCL tuner plugins and asks them for decisions (tuner.h). */
#include "tuner.h"
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../base/plugin.h"
#include "../collectives/algorithm.h"
#include "../decide/machine.h"
#include "../decide/select.h"
#include "tuner_abi.h"

struct hk_tuner {
  void *library;
  const void *symbol; /* tuner_v2 ... tuner_v6 */
  int version;
  void *context;
  bool begun;
};

static const char *tuner_name_of(const hk_tuner *t) {
  const char *name = ((const tuner_v2 *)t->symbol)->name; /* first in every version */
  return name ? name : "(without a name)";
}

/* ---- loading ---- */

hk_status hk_tuner_load(const hk_settings *settings, hk_tuner **out) {
  const char *name = settings->TUNER_PLUGIN;
  char why[256];
  hk_plugin plugin;
  *out = NULL;
  if (name && (!*name || !strcmp(name, "none"))) return HK_OK;
  const hk_plugin_request request = {"tuner", name, settings->NET_PLUGIN, "ncclTunerPlugin_v", 6, 2};
  if (!hk_plugin_find(&request, &plugin, why, sizeof why)) {
    if (name) HK_WARN("NCCL_TUNER_PLUGIN is %s, which cannot be loaded: %s. Going on without it", name, why);
    if (!name && *why) HK_WARN("the tuner plugin %s. Going on without it", why);
    return HK_OK;
  }
  hk_tuner *t = calloc(1, sizeof *t);
  if (!t) {
    dlclose(plugin.library);
    return HK_FAIL_ERRNO("no memory for a tuner plugin");
  }
  *t = (hk_tuner){.library = plugin.library, .symbol = plugin.symbol, .version = plugin.version};
  HK_INFO(HK_SUB_INIT | HK_SUB_TUNING, "tuner plugin %s (v%d) from %s", tuner_name_of(t), t->version, plugin.file);
  *out = t;
  return HK_OK;
}

uint64_t hk_tuner_hash(const hk_tuner *t) {
  if (!t) return 0;
  uint64_t h = (uint64_t)t->version;
  for (const char *c = tuner_name_of(t); *c; c++) h = h * 0x100000001b3u + (unsigned char)*c;
  return h;
}

bool hk_tuner_begin(hk_tuner *t, const hk_machine *m, uint64_t comm) {
  ncclResult_t rc;
  size_t n = (size_t)m->team.nranks, hosts = (size_t)m->team.nhosts;
  if (t->version >= 5) {
    tuner_domains_v5 domains = {
        .domains = m->team.nhosts, .least_ranks = m->team.least_per_host, .most_ranks = m->team.ranks_per_host};
    tuner_constants_v5 *constants = calloc(1, sizeof *constants);
    rc = constants
             ? ((const tuner_v5 *)t->symbol)->init(&t->context, comm, n, hosts, hk_plugin_log, &domains, constants)
             : ncclSystemError;
    free(constants);
  } else {
    rc = ((const tuner_v4 *)t->symbol)->init(n, hosts, hk_plugin_log, &t->context); /* the same since v2 */
  }
  t->begun = rc == ncclSuccess;
  if (!t->begun)
    HK_WARN("the tuner plugin %s refuses its init with code %d. Going on without it", tuner_name_of(t), (int)rc);
  return t->begun;
}

void hk_tuner_free(hk_tuner *t) {
  if (!t) return;
  if (t->begun) ((const tuner_v4 *)t->symbol)->destroy(t->context); /* the same place in every version */
  dlclose(t->library);
  free(t);
}

/* ---- questions to the plugin ---- */

HK_ASSERT((int)TUNER_ALGORITHMS == (int)HK_NCCL_ALGORITHMS, "plugins have NCCL's numbers");
static const int tuner_protocols[HK_PROTO_COUNT] = {
    [HK_PROTO_LL] = TUNER_LL, [HK_PROTO_LL128] = TUNER_LL128, [HK_PROTO_SIMPLE] = TUNER_SIMPLE};

/* NCCL's number of the algorithm; -1: it has none. */
static int tuner_number_of(const hk_algorithm *a) {
  for (int i = 0; i < 2 * TUNER_ALGORITHMS; i++) {
    const char *name = hk_nccl_algorithms[i / 2].ours[i % 2];
    if (name && !strcmp(name, a->name)) return i / 2;
  }
  return -1;
}

/* NCCL's number of the collective; -1: plugins have none. */
static int tuner_function_of(hk_coll coll) {
  switch (coll) {
    case HK_BROADCAST: return TUNER_BROADCAST;
    case HK_REDUCE: return TUNER_REDUCE;
    case HK_ALLGATHER: return TUNER_ALLGATHER;
    case HK_REDUCE_SCATTER: return TUNER_REDUCE_SCATTER;
    case HK_ALLREDUCE: return TUNER_ALLREDUCE;
    default: return -1;
  }
}

typedef struct offer {
  float us[TUNER_ALGORITHMS][TUNER_PROTOCOLS];
  hk_decision what[TUNER_ALGORITHMS][TUNER_PROTOCOLS];
} offer;

/* Fills in the choices for a plugin, without algorithms that NCCL does not have. */
static hk_status tuner_fill(offer *o, const hk_machine *m, const hk_filter *w, hk_coll coll, size_t bytes) {
  for (int a = 0; a < TUNER_ALGORITHMS; a++)
    for (int p = 0; p < TUNER_PROTOCOLS; p++) o->us[a][p] = -1;
  for (int i = 0; i < 2 * TUNER_ALGORITHMS; i++) {
    const char *name = hk_nccl_algorithms[i / 2].ours[i % 2];
    for (int p = 0; name && p < HK_PROTO_COUNT; p++) {
      hk_decision *d = &o->what[i / 2][tuner_protocols[p]];
      bool can;
      HK_OR_RETURN(hk_select_one(m, w, coll, bytes, hk_algorithm_by_name(name), (hk_protocol)p, d, &can));
      if (can) o->us[i / 2][tuner_protocols[p]] = (float)d->us;
    }
  }
  return HK_OK;
}

static ncclResult_t tuner_ask_v2(hk_tuner *t, const hk_machine *m, int function, size_t bytes, offer *o,
                                 int *channels) {
  int a = -1, p = -1;
  ncclResult_t rc = ((const tuner_v2 *)t->symbol)
                        ->get(t->context, function, bytes, m->team.in_network, m->team.in_switch, 1, &a, &p, channels);
  if (rc != ncclSuccess || a < 0 || a >= TUNER_ALGORITHMS || p < 0 || p >= TUNER_PROTOCOLS) return rc;
  if (o->us[a][p] >= 0) o->us[a][p] = 0; /* the plugin's choice is taken if it can run */
  return rc;
}

static ncclResult_t tuner_ask(hk_tuner *t, const hk_machine *m, int function, size_t bytes, offer *o, int *channels) {
  float **table = (float **)(void *)o->us;
  if (t->version == 2) return tuner_ask_v2(t, m, function, bytes, o, channels);
  if (t->version == 3)
    return ((const tuner_v3 *)t->symbol)
        ->get(t->context, function, bytes, 1, table, TUNER_ALGORITHMS, TUNER_PROTOCOLS, channels);
  return ((const tuner_v4 *)t->symbol) /* the same in v5 and v6 */
      ->get(t->context, function, bytes, 1, table, TUNER_ALGORITHMS, TUNER_PROTOCOLS, 0, channels);
}

hk_status hk_tuner_select(hk_tuner *t, const hk_machine *m, const hk_filter *w, hk_coll coll, size_t bytes,
                          hk_decision *d) {
  offer before, after;
  int function = tuner_function_of(coll), channels = 0;
  HK_OR_RETURN(hk_select(m, w, coll, bytes, d));
  if (!t || d->ruled || function < 0 || !t->begun || m->team.nranks < 2) return HK_OK;
  HK_OR_RETURN(tuner_fill(&before, m, w, coll, bytes));
  after = before;
  ncclResult_t rc = tuner_ask(t, m, function, bytes, &after, &channels);
  if (rc != ncclSuccess) {
    HK_WARN_ONCE("the tuner plugin %s fails with code %d: the model decides", tuner_name_of(t), (int)rc);
    return HK_OK;
  }
  const hk_decision *best = NULL;
  double us = d->us;
  const int own = tuner_number_of(d->algorithm), by = tuner_protocols[d->protocol];
  /* If the plugin raised the price of the model's own choice, that is no longer the cheapest. */
  if (own >= 0 && before.us[own][by] >= 0 && after.us[own][by] >= 0) us = after.us[own][by];
  for (int a = 0; a < TUNER_ALGORITHMS; a++)
    for (int p = 0; p < TUNER_PROTOCOLS; p++) {
      if (before.us[a][p] < 0 || after.us[a][p] < 0 || (double)after.us[a][p] >= us) continue;
      best = &before.what[a][p];
      us = after.us[a][p];
    }
  if (best && (best->algorithm != d->algorithm || best->protocol != d->protocol)) {
    *d = *best;
    d->note = "as the tuner plugin says";
  }
  if (channels > 0) d->channels = channels;
  return HK_OK;
}

size_t hk_tuner_chunk(const hk_tuner *t, hk_coll coll, size_t bytes, const hk_decision *d, int channels, size_t chunk) {
  enum { LEAST = 64 }; /* chunks begin on cache lines */
  const int function = tuner_function_of(coll), algorithm = tuner_number_of(d->algorithm);
  size_t wanted = chunk;
  const tuner_v6 *v = t->symbol;
  if (t->version < 6 || !t->begun || !v->chunk || function < 0) return chunk;
  if (algorithm < 0 ||
      v->chunk(t->context, function, bytes, algorithm, tuner_protocols[d->protocol], channels, &wanted) != ncclSuccess)
    return chunk;
  wanted = wanted / LEAST * LEAST;
  /* the model's chunk is the largest that fits into slots */
  return wanted >= chunk ? chunk : wanted < LEAST ? LEAST : wanted;
}
