/* SPDX-License-Identifier: Apache-2.0 */
/* Sends data over the links that calls will use (diagnose.h). Ranks of a host send each other a pattern and look at
 * what arrives. Then each rank sends to its neighbour on the next host and measures. Hosts form a ring; those at even
 * positions send first, then the others, so that a host is in one pair at a time. */
#include <nccl.h>
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/wait.h"
#include "../boot/bootstrap.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../transport/peer.h"
#include "../transport/transport.h"
#include "diagnose.h"
#include "hosts.h"

enum {
  BLOCK = 65536,   /* bytes that ranks of a host send each other */
  TRIAL = 1 << 20, /* between hosts: the first message, by whose time the next one is chosen */
  MOST = 1000 * 65536,
  NAMED = 8 /* lines of a kind */
};

/* What a rank has found. */
typedef struct links_fact {
  uint32_t tested, good;
  int32_t bad_from; /* a rank whose data arrived changed; -1: none */
  uint32_t bad_at;  /* its first wrong byte */
  double gbit;      /* to the next host; 0: not measured */
  double trial_s;
} links_fact;

typedef struct links_run {
  ncclComm_t c;
  int *position; /* of each rank: the number of its host, in the order of their first ranks */
  int nhosts;
  char *device, *host; /* room for `capacity` bytes, to send and to receive; device: of the backend, or `host` */
  size_t capacity;
} links_run;

/* ---- memory and calls ---- */

static hk_status links_begin_memory(links_run *x, size_t bytes) {
  x->capacity = bytes;
  x->host = calloc(2, bytes);
  if (!x->host) return HK_FAIL_ERRNO("no memory for diagnostics");
  x->device = x->host;
  return x->c->backend->diagnosis ? x->c->backend->process->alloc(x->c->device, 2 * bytes, (void **)&x->device) : HK_OK;
}

static void links_end_memory(links_run *x) {
  hk_status ignored;
  if (x->device && x->device != x->host) (void)x->c->backend->process->free(x->device, &ignored);
  free(x->host);
  x->host = x->device = NULL;
}

/* The first half to the device before a call, the second half from it after that, which also waits for the call. */
static hk_status links_copy(const links_run *x, bool in, size_t bytes) {
  if (!x->c->backend->diagnosis) return HK_OK;
  return in ? x->c->backend->diagnosis->copy(x->c, x->device, x->host, bytes)
            : x->c->backend->diagnosis->copy(x->c, x->host + x->capacity, x->device + x->capacity, bytes);
}

static hk_call links_call(const links_run *x, hk_p2p what, size_t at, size_t bytes, int peer) {
  hk_call call = {.comm = x->c, .count = bytes};
  call.coll = HK_SENDRECV;
  call.p2p = (uint8_t)what;
  call.dtype = HK_U8;
  call.root = peer;
  if (what == HK_P2P_SEND)
    call.in = x->device + at;
  else
    call.out = x->device + x->capacity + at;
  return call;
}

static hk_status links_do(const links_run *x, const hk_call *calls, size_t n) {
  if (!n) return HK_OK;
  hk_calls_mark_inside(calls, n, 1);
  hk_status rc = x->c->backend->run_group(calls, n);
  hk_calls_mark_inside(calls, n, -1);
  return rc;
}

/* ---- ranks of a host ---- */

static char links_pattern(int from, int to, size_t i) {
  return (char)(unsigned char)(i * 31 + (i >> 8) * 7 + (size_t)from * 101 + (size_t)to * 17 + 1);
}

static void links_look(const links_run *x, const int *peers, int n, links_fact *own) {
  own->tested = (uint32_t)n;
  for (int k = 0; k < n; k++) {
    const char *got = x->host + x->capacity + (size_t)k * BLOCK;
    size_t i = 0;
    while (i < BLOCK && got[i] == links_pattern(peers[k], x->c->rank, i)) i++;
    own->good += i == BLOCK;
    if (i == BLOCK || own->bad_from >= 0) continue;
    own->bad_from = peers[k];
    own->bad_at = (uint32_t)i;
  }
}

static hk_status links_test_host(links_run *x, links_fact *own) {
  hk_status rc = HK_OK;
  ncclComm_t c = x->c;
  int n = 0;
  int *peers = malloc((size_t)c->nranks * sizeof *peers);
  hk_call *calls = malloc(2 * (size_t)c->nranks * sizeof *calls);
  if (!peers || !calls) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for diagnostics"), out);
  for (int r = 0; r < c->nranks; r++)
    if (r != c->rank && x->position[r] == x->position[c->rank]) peers[n++] = r;
  if (!n) goto out;
  HK_TRY(links_begin_memory(x, (size_t)n * BLOCK), out);
  for (int k = 0; k < n; k++) {
    for (size_t i = 0; i < BLOCK; i++) x->host[(size_t)k * BLOCK + i] = links_pattern(c->rank, peers[k], i);
    calls[2 * k] = links_call(x, HK_P2P_SEND, (size_t)k * BLOCK, BLOCK, peers[k]);
    calls[2 * k + 1] = links_call(x, HK_P2P_RECV, (size_t)k * BLOCK, BLOCK, peers[k]);
  }
  HK_TRY(links_copy(x, true, x->capacity), out);
  HK_TRY(links_do(x, calls, 2 * (size_t)n), out);
  HK_TRY(links_copy(x, false, x->capacity), out);
  links_look(x, peers, n, own);
out:
  links_end_memory(x);
  free(calls);
  free(peers);
  return rc;
}

/* ---- neighbouring hosts ---- */

/* The rank on a host that is as many ranks after the host's first one as this rank; -1: there is none. */
static int links_counterpart(const links_run *x, int position) {
  const int own = x->c->rank;
  int before = 0;
  for (int r = 0; r < own; r++) before += x->position[r] == x->position[own];
  for (int r = 0; r < x->c->nranks; r++)
    if (x->position[r] == position && before-- == 0) return r;
  return -1;
}

/* One message in this phase: to the next host, or from the one before. *seconds of the receiver. */
static hk_status links_send_on(const links_run *x, int phase, size_t bytes, int to, int from, double *seconds) {
  const int here = x->position[x->c->rank], before = (here + x->nhosts - 1) % x->nhosts;
  /* The last host of an odd number is in no pair with the first one. */
  const bool sends = to >= 0 && here % 2 == phase && !(x->nhosts % 2 && here == x->nhosts - 1);
  const bool receives = from >= 0 && before % 2 == phase && !(x->nhosts % 2 && before == x->nhosts - 1);
  const hk_call call = sends ? links_call(x, HK_P2P_SEND, 0, bytes, to) : links_call(x, HK_P2P_RECV, 0, bytes, from);
  if (!sends && !receives) return HK_OK;
  const uint64_t begin = hk_now_ns();
  HK_OR_RETURN(links_do(x, &call, 1));
  HK_OR_RETURN(links_copy(x, false, 1)); /* waits */
  if (receives) *seconds = (double)hk_ago_ns(hk_now_ns(), begin) * 1e-9;
  return HK_OK;
}

static size_t links_bytes_for(double trial_s, double limit_s) {
  const double bytes = trial_s > 0 ? TRIAL * (limit_s / 2) / trial_s : MOST;
  return bytes >= MOST ? MOST : bytes < TRIAL ? TRIAL : (size_t)bytes / TRIAL * TRIAL;
}

static hk_status links_measure_hosts(links_run *x, links_fact *facts) {
  hk_status rc = HK_OK;
  ncclComm_t c = x->c;
  const int here = x->position[c->rank];
  const int to = links_counterpart(x, (here + 1) % x->nhosts);
  const int from = links_counterpart(x, (here + x->nhosts - 1) % x->nhosts);
  const double limit = (double)c->settings->DIAGNOSTICS_IB_BW_TIMEOUT;
  links_fact *own = &facts[c->rank];
  double seconds = 0;
  HK_TRY(links_begin_memory(x, MOST), out);
  for (int phase = 0; phase < 2; phase++) /* opens the links, too: so twice */
    for (int again = 0; again < 2; again++) HK_TRY(links_send_on(x, phase, TRIAL, to, from, &own->trial_s), out);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, facts, sizeof *facts), out);
  for (int phase = 0; phase < 2; phase++) {
    /* The receiver's trial decides, so both ranks of a pair know it. */
    const bool sends = here % 2 == phase;
    const int receiver = sends ? to : c->rank;
    const size_t bytes = links_bytes_for(receiver >= 0 ? facts[receiver].trial_s : 0, limit);
    seconds = 0;
    HK_TRY(hk_bootstrap_barrier(c->bootstrap), out);
    HK_TRY(links_send_on(x, phase, bytes, to, from, &seconds), out);
    if (seconds > 0) own->gbit = (double)bytes * 8e-9 / seconds;
  }
out:
  links_end_memory(x);
  return rc;
}

/* ---- the report ---- */

static void links_report_host(hk_diagnosis *d, const links_fact *facts) {
  unsigned tested = 0, good = 0, named = 0;
  for (int r = 0; r < d->comm->nranks; r++) tested += facts[r].tested, good += facts[r].good;
  if (!tested) return;
  if (good == tested)
    hk_diagnosis_say(d, HK_DIAGNOSIS_OK,
                     "p2p: verified access in both directions between every pair of ranks of a host (%u peer accesses)",
                     tested);
  else
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "p2p: only %u/%u peer accesses passed verification", good, tested);
  for (int r = 0; r < d->comm->nranks && named < NAMED; r++) {
    const links_fact *f = &facts[r];
    if (f->bad_from < 0) continue;
    named++;
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO,
                     "p2p: data from rank %d (device %d) to rank %d (device %d) is changed from byte %u on",
                     f->bad_from, d->comm->peers[f->bad_from].device, r, d->comm->peers[r].device, f->bad_at);
  }
}

static int links_by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static hk_status links_report_hosts(hk_diagnosis *d, const links_fact *facts) {
  int n = 0, odd = 0;
  double *sorted = malloc((size_t)d->comm->nranks * sizeof *sorted);
  if (!sorted) return HK_FAIL_ERRNO("no memory for diagnostics");
  for (int r = 0; r < d->comm->nranks; r++)
    if (facts[r].gbit > 0) sorted[n++] = facts[r].gbit;
  qsort(sorted, (size_t)n, sizeof *sorted, links_by_size);
  const double median = n ? sorted[n / 2] : 0;
  for (int i = 0; i < n; i++) odd += sorted[i] < 0.7 * median || sorted[i] > 1.3 * median;
  if (n)
    hk_diagnosis_say(d, odd ? HK_DIAGNOSIS_INFO : HK_DIAGNOSIS_OK,
                     "net bw: %.1f/%.1f/%.1f Gbit/s min/median/max from the host before (across %d ranks)", sorted[0],
                     median, sorted[n - 1], n);
  for (int r = 0, named = 0; r < d->comm->nranks && named < NAMED; r++) {
    if (facts[r].gbit <= 0 || (facts[r].gbit >= 0.7 * median && facts[r].gbit <= 1.3 * median)) continue;
    named++;
    hk_diagnosis_say(d, HK_DIAGNOSIS_INFO, "net bw: rank %d: %.1f Gbit/s, >30%% off median %.1f Gbit/s", r,
                     facts[r].gbit, median);
  }
  free(sorted);
  return HK_OK;
}

static void links_number_hosts(links_run *x) {
  for (int r = 0; r < x->c->nranks; r++) {
    const int first = hk_hosts_first(x->c, r);
    x->position[r] = first == r ? x->nhosts++ : x->position[first];
  }
}

hk_status hk_diagnose_links(ncclComm_t c) {
  hk_status rc = HK_OK;
  hk_diagnosis d = {0};
  links_run x = {.c = c};
  links_fact *facts = calloc((size_t)c->nranks, sizeof *facts);
  x.position = calloc((size_t)c->nranks, sizeof *x.position);
  if (!facts || !x.position) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for the diagnostics of %d ranks", c->nranks), out);
  HK_TRY(hk_diagnosis_begin(&d, c, "NCCL Diagnostics"), out);
  facts[c->rank].bad_from = -1;
  links_number_hosts(&x);
  HK_TRY(links_test_host(&x, &facts[c->rank]), out);
  if (x.nhosts > 1) HK_TRY(links_measure_hosts(&x, facts), out);
  HK_TRY(hk_bootstrap_allgather(c->bootstrap, facts, sizeof *facts), out);
  if (c->rank == 0) {
    links_report_host(&d, facts);
    HK_TRY(links_report_hosts(&d, facts), out);
  }
out:
  hk_diagnosis_end(&d, "NCCL diagnostics");
  free(x.position);
  free(facts);
  return rc;
}
