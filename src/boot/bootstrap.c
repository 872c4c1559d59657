/* SPDX-License-Identifier: Apache-2.0 */
/* Joins and leaves a communicator. See docs/bootstrap.md. */
#include "bootstrap.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/log.h"
#include "../base/param.h"
#include "../base/tcp.h"
#include "dial.h"
#include "internal.h"
#include "job.h"

enum {
  RANKS_MAX = 1 << 20,
  ROOT_GRACE_S = 3, /* ranks wait longer than their root by this, because its error has more information than theirs */
  /* time to retry after a root closed the connection: its process has ended, or it dropped this rank's older
   * connection */
  ROOT_BACK_S = 1,
  /* time to retry while a root refuses: it may be overloaded, or its host's network is just starting */
  ROOT_PATIENCE_S = 10,
  PREVIOUS_NS = 1000 * 1000 * 1000,
  EXCUSE_NS = 1000 * 1000 * 1000, /* time to report this rank's failure to the root */
  NAP_NS = 20 * 1000 * 1000
};
/* The same for a rank that has not looked for its root, which is at a given address: it may start later. */
#define EXCUSE_EARLY_NS (5 * (uint64_t)EXCUSE_NS)

/* A rank that waits for others must be able to accept their connections. */
static hk_status bootstrap_check_waiting(void *arg, uint64_t waited_ns) {
  hk_bootstrap *b = arg;
  const hk_wait_env *base = b->o.wait;
  hk_status rc = hk_listener_check(b->listener);
  return rc == HK_OK && base->check ? base->check(base->arg, waited_ns) : rc;
}

hk_status hk_bootstrap_check_listener(hk_bootstrap *b) { return hk_listener_check(b->listener); }

static hk_wait_env bootstrap_env_until(hk_bootstrap *b, uint64_t seconds) {
  hk_wait_env env = *b->o.wait;
  env.check = bootstrap_check_waiting;
  env.arg = b;
  uint64_t deadline = hk_now_ns() + seconds * 1000000000u;
  if (!env.deadline_ns || env.deadline_ns > deadline) env.deadline_ns = deadline;
  return env;
}

static uint64_t bootstrap_join_seconds(const hk_bootstrap *b) { return (uint64_t)b->o.settings->BOOTSTRAP_TIMEOUT; }

/* ---- making and freeing ---- */

static void bootstrap_destroy(hk_bootstrap *b) {
  if (b->family) hk_family_put(b->listener, b->family);
  if (b->listener) hk_listener_put(b->listener);
  pthread_cond_destroy(&b->change);
  pthread_mutex_destroy(&b->lock);
  free(b->contacts);
  free(b->failures.seen);
  free(b->failures.dead);
  free(b->failures.shrinks);
  free(b);
}

/* Makes the parts that need no peer. */
static hk_status bootstrap_create(hk_bootstrap **out, const hk_bootstrap_options *o,
                                  const uint8_t secret[HK_SECRET_BYTES]) {
  hk_status rc;
  *out = NULL;
  if (o->nranks < 1 || o->nranks > RANKS_MAX)
    return HK_FAIL(HK_ERR_ARGUMENT, "%d is not a valid number of ranks: it must be from 1 to %d", o->nranks, RANKS_MAX);
  if (o->rank < 0 || o->rank >= o->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "rank %d is out of range: there are %d ranks, numbered from 0", o->rank, o->nranks);
  hk_bootstrap *b = calloc(1, sizeof *b);
  if (!b) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for the bootstrap");
  b->o = *o;
  b->rank = o->rank;
  b->nranks = o->nranks;
  while ((int64_t)1 << b->rounds < b->nranks) b->rounds++;
  b->pid = getpid();
  atomic_init(&b->call.awaited, -1);
  hk_bootstrap_begin(b, HK_PHASE_IDLE, NULL);
  pthread_mutex_init(&b->lock, NULL);
  hk_cond_init(&b->change);
  b->inbox_end = &b->inbox;
  b->events_end = &b->events;
  b->deliveries_end = &b->deliveries;
  b->event_work = (hk_service_work){.fn = hk_event_work, .arg = b};
  b->contacts = calloc((size_t)b->nranks, HK_CONTACT_BYTES);
  b->failures.seen = calloc(((size_t)b->nranks / 64 + 1) * HK_EVENT_KINDS, sizeof *b->failures.seen);
  b->failures.shrinks = calloc((size_t)b->nranks, sizeof *b->failures.shrinks);
  b->failures.dead = calloc((size_t)b->nranks / 64 + 1, sizeof *b->failures.dead);
  if (!b->contacts || !b->failures.seen || !b->failures.dead || !b->failures.shrinks)
    HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM, "out of memory for %d ranks' addresses", b->nranks), out);
  HK_TRY(hk_listener_get(&b->listener), out);
  HK_TRY(hk_family_get(&b->family, b->listener, secret), out);
  HK_TRY(hk_overlay_init(b), out);
out:
  if (rc != HK_OK)
    bootstrap_destroy(b);
  else
    *out = b;
  return rc;
}

void hk_bootstrap_leave(hk_bootstrap *b) {
  if (!b) return;
  if (b->pid != getpid()) return; /* a forked child: the threads do not exist here, and the descriptors are closed */
  hk_member_leave(b);             /* first, so that nothing arrives any more */
  hk_overlay_leave(b);
  hk_overlay_free(b);
  bootstrap_destroy(b);
}

/* A rank that fails before the rank before it has connected cannot notify that rank. That rank connects soon, unless it
 * fails, too; if this rank were gone by then, it would name this one, whatever the cause. */
static void bootstrap_await_previous(hk_bootstrap *b) {
  hk_wait_env env = {.spins = 0};
  uint64_t deadline_ns = hk_now_ns() + PREVIOUS_NS;
  hk_overlay_link *l = hk_link_to(b, false, 0);
  hk_waiter w;
  hk_wait_begin(&w, &env);
  pthread_mutex_lock(&b->lock);
  while (l->end == HK_END_CLOSED && b->failures.first_event.rank != l->rank && hk_now_ns() < deadline_ns)
    if (hk_wait_cond(&w, &b->change, &b->lock) != HK_OK) break;
  pthread_mutex_unlock(&b->lock);
}

/* A rank that cannot join notifies the ranks that it has links with, so that they need not wait for their deadline. If
 * another rank is the cause, this one has not failed by itself: the event is then that rank's death, or a suspicion
 * about it. */
static void bootstrap_give_up(hk_bootstrap *b, hk_status rc) {
  hk_event e = {.kind = rc == HK_ERR_REMOTE ? HK_EVENT_SUSPECT : HK_EVENT_ERROR, .rank = b->rank, .code = (int32_t)rc};
  snprintf(e.text, sizeof e.text, "%.*s", (int)sizeof e.text - 1, hk_last_error());
  for (int i = 0; b->parent && rc == HK_ERR_REMOTE && i < b->nranks; i++) {
    if (!hk_event_dead(b->parent, b->members[i])) continue;
    e.kind = HK_EVENT_DEAD;
    e.rank = i;
    break;
  }
  pthread_mutex_lock(&b->lock);
  bool known = b->failures.broken;
  pthread_mutex_unlock(&b->lock);
  if (!known || e.kind == HK_EVENT_ERROR) hk_bootstrap_announce(b, &e);
  if (b->member && b->rounds && !b->parent)
    bootstrap_await_previous(b); /* members of a parent report over the parent */
  hk_event_repeat(b);
  hk_bootstrap_leave(b);
}

/* ---- the root ---- */

typedef struct registration {
  hk_bootstrap *b;
  const hk_boot_id *ids;
  int nids;
} registration;

static int bootstrap_low_rank(int root, int nids, int nranks) { return (int)((int64_t)root * nranks / nids); }

static int bootstrap_root_of(int rank, int nids, int nranks) {
  int i = (int)((int64_t)rank * nids / nranks);
  while (i + 1 < nids && bootstrap_low_rank(i + 1, nids, nranks) <= rank) i++;
  return i;
}

/* `ended`: the root was connected before and closed the connection without an answer, as it does when its process
 * ends. */
static hk_status bootstrap_dial_root(const hk_bootstrap *b, const hk_boot_id *id, const hk_hello *h, bool ended,
                                     const hk_wait_env *env, int *fd) {
  hk_dialing d = {.settings = b->o.settings, .hello = h, .secret = id->secret, .wait = env, .n = id->n};
  char whom[80];
  snprintf(whom, sizeof whom, "the root of %s (as rank %d of %d)", id->from_env ? "the given address" : "the unique id",
           h->from, h->to);
  d.whom = whom;
  memcpy(d.at, id->at, sizeof id->at);
  d.reports = id->from_env;
  d.patience_ns = (id->from_env ? bootstrap_join_seconds(b) : ROOT_PATIENCE_S) * (uint64_t)1000000000;
  d.advice = id->from_env
                 ? "NCCL_COMM_ID, or MASTER_ADDR, must be an address of rank 0's host that this host reaches, and rank "
                   "0 must run"
                 : "the process that called ncclGetUniqueId must still run, this host must reach it (firewall?), and "
                   "an id serves for one communicator";
  if (ended && !id->from_env) {
    d.patience_ns = ROOT_BACK_S * (uint64_t)1000000000;
    d.advice =
        "this rank was connected to it before: the process that called ncclGetUniqueId has ended; see its output";
  }
  return hk_boot_dial(&d, fd);
}

/* Reads the root's answer.  HK_IN_PROGRESS: the connection broke, or `ended`; join again. */
static hk_status bootstrap_read_reply(int fd, const hk_boot_id *id, const hk_hello *h, const hk_wait_env *env,
                                      hk_reply *reply, bool *ended) {
  uint8_t bytes[HK_REPLY_BYTES];
  hk_status rc = hk_wait_recv(env, fd, bytes, sizeof bytes, "the other ranks to join (the root's answer)");
  if (rc != HK_OK) {
    *ended = errno == 0;
    return rc;
  }
  if (!hk_reply_decode(reply, bytes, h->nonce, id->secret))
    return HK_FAIL(HK_ERR_REMOTE,
                   "the root of the unique id sent an answer with a wrong proof: start again with a new unique id");
  return HK_OK;
}

/* A hello to root `root` of `roots`. The nonce is not set. */
static hk_hello bootstrap_root_hello(const hk_settings *settings, hk_hello_kind kind, const hk_boot_id *id, int root,
                                     int roots, int rank, int nranks) {
  hk_boot_job job = {.token = 0};
  if (id->from_env)
    hk_boot_job_here(settings, &job); /* any other id is random: a rank that has it belongs to the job */
  return (hk_hello){.kind = kind,
                    .from = rank,
                    .to = nranks,
                    .round = (uint32_t)roots,
                    .tag = (uint64_t)root,
                    .key = hk_boot_id_key(id),
                    .job = job.token};
}

/* Registers with one root; JOIN waits for its answer. */
static hk_status bootstrap_register_with(const registration *g, hk_hello_kind kind, int root, const hk_wait_env *env,
                                         hk_reply *reply) {
  hk_bootstrap *b = g->b;
  const hk_boot_id *id = &g->ids[root];
  hk_hello h = bootstrap_root_hello(b->o.settings, kind, id, root, g->nids, b->rank, b->nranks);
  hk_status rc = hk_random(h.nonce, sizeof h.nonce);
  *reply = (hk_reply){.status = HK_OK};
  memcpy(h.contact, hk_contact_of(b, b->rank), HK_CONTACT_BYTES);
  hk_boot_job job;
  char at[HK_ADDR_TEXT];
  hk_boot_job_here(b->o.settings, &job);
  if (rc == HK_OK) rc = hk_root_join(&h, reply, env);
  bool ended = false;
  while (rc == HK_IN_PROGRESS) { /* the root is not in this process */
    int fd;
    HK_OR_RETURN(bootstrap_dial_root(b, id, &h, ended, env, &fd));
    rc = kind == HK_HELLO_JOIN ? bootstrap_read_reply(fd, id, &h, env, reply, &ended) : HK_OK;
    hk_boot_close(fd);
  }
  if (rc == HK_OK && reply->other_job)
    rc = HK_FAIL(
        reply->status,
        "two jobs have the same address %s (NCCL_COMM_ID, MASTER_ADDR): the root there is of %s, and this rank, %d of "
        "%d, of %s; give each job a port of its own, or, if this is one job, all its ranks the same HOCKET_JOB",
        hk_addr_format(&id->at[0], at), reply->text, b->rank, b->nranks, job.text);
  else if (rc == HK_OK && reply->status != HK_OK)
    rc = HK_FAIL(reply->status, "%s", reply->text);
  return rc;
}

/* Reports to one root at a time. Needs no memory, and only one descriptor, the socket. */
static void bootstrap_excuse_to(const hk_settings *settings, const hk_boot_id *id, hk_hello *h, const char *cause,
                                uint64_t deadline_ns) {
  hk_wait_env env = {.deadline_ns = deadline_ns}, nap = {.spins = 0};
  hk_dialing d = {.settings = settings, .hello = h, .text = cause, .secret = id->secret, .wait = &env, .n = id->n};
  hk_ack ack;
  hk_waiter w;
  if (hk_random(h->nonce, sizeof h->nonce) != HK_OK || hk_root_report_abort(h, cause)) return;
  memcpy(d.at, id->at, sizeof id->at);
  hk_wait_begin(&w, &nap);
  while (hk_boot_probe(&d, &ack, NULL, 0) != HK_PROBE_ANSWERED && hk_now_ns() < deadline_ns)
    (void)hk_wait_nap(&w, -1, NAP_NS); /* nothing else ends this wait */
}

/* `early`: this rank has not looked for a root yet. */
static void bootstrap_report_abort(const hk_settings *settings, const ncclUniqueId *ids, int nids, int rank, int nranks,
                                   bool early) {
  const uint64_t begin_ns = hk_now_ns();
  char cause[HK_ERROR_TEXT];
  snprintf(cause, sizeof cause, "%s", hk_last_error());
  for (int i = 0; i < nids; i++) {
    hk_boot_id id;
    if (hk_boot_id_decode(&id, &ids[i]) != HK_OK) continue;
    hk_hello h = bootstrap_root_hello(settings, HK_HELLO_FAILED, &id, i, nids, rank, nranks);
    bootstrap_excuse_to(settings, &id, &h, cause, begin_ns + (early && id.from_env ? EXCUSE_EARLY_NS : EXCUSE_NS));
    explicit_bzero(id.secret, sizeof id.secret);
  }
  hk_error_adopt(cause);
}

void hk_bootstrap_report_abort(const hk_settings *settings, const ncclUniqueId *ids, int nids, int rank, int nranks) {
  bootstrap_report_abort(settings, ids, nids, rank, nranks, true);
}

/* NCCL_UID_STAGGER_*: the ranks of a root come one after another. */
static hk_status bootstrap_stagger(const registration *g, int root, const hk_wait_env *env) {
  const hk_bootstrap *b = g->b;
  const hk_settings *s = b->o.settings;
  const int first = bootstrap_low_rank(root, g->nids, b->nranks);
  if (!s->UID_STAGGER_THRESHOLD || bootstrap_low_rank(root + 1, g->nids, b->nranks) - first <= s->UID_STAGGER_THRESHOLD)
    return HK_OK;
  hk_waiter w;
  hk_wait_begin(&w, env);
  return hk_wait_nap(&w, -1, (uint64_t)(b->rank - first) * 1000000000u / (uint64_t)s->UID_STAGGER_RATE);
}

/* Gets the next rank's contact and the communicator's id. */
static hk_status bootstrap_meet(const registration *g) {
  hk_bootstrap *b = g->b;
  hk_contact own;
  hk_reply reply;
  hk_wait_env env = bootstrap_env_until(b, bootstrap_join_seconds(b) + ROOT_GRACE_S);
  /* No rank connects to this one yet, and a root in this process reports itself if it cannot be reached. */
  env.check = b->o.wait->check;
  env.arg = b->o.wait->arg;
  int root = bootstrap_root_of(b->rank, g->nids, b->nranks);
  HK_OR_RETURN(hk_listener_contact(b->listener, &own, &g->ids[root].at[0]));
  hk_contact_encode(hk_contact_of(b, b->rank), &own);
  if (g->nids > 1 && b->rank == bootstrap_low_rank(root, g->nids, b->nranks))
    HK_OR_RETURN(bootstrap_register_with(g, HK_HELLO_CONTACT, (root + g->nids - 1) % g->nids, &env, &reply));
  HK_OR_RETURN(bootstrap_stagger(g, root, &env));
  HK_OR_RETURN(bootstrap_register_with(g, HK_HELLO_JOIN, root, &env, &reply));
  memcpy(hk_contact_of(b, (b->rank + 1) % b->nranks), reply.next, HK_CONTACT_BYTES);
  uint8_t salt[8] = {0};
  /* With one root, its salt distinguishes the communicators of one NCCL_COMM_ID. With several, all ranks know only
   * the ids. */
  if (g->nids == 1) hk_put64(salt, reply.salt);
  b->comm = hk_derive64(b->family->secret, "communicator", salt, sizeof salt);
  return HK_OK;
}

/* ---- the overlay ---- */

static void bootstrap_now_known(hk_bootstrap *b) {
  hk_bootstrap_begin(b, HK_PHASE_IDLE, NULL);
  pthread_mutex_lock(&b->lock);
  b->known = true;
  b->parent = NULL;
  b->members = NULL;
  pthread_mutex_unlock(&b->lock);
}

/* A join that fails may have none left but this. */
int hk_bootstrap_spare(void) { return hk_boot_socket(AF_UNIX); }
void hk_bootstrap_end_spare(int *spare) {
  if (!spare) return;
  hk_boot_close(*spare);
  *spare = -1;
}

hk_status hk_bootstrap_join(hk_bootstrap **out, const ncclUniqueId *ids, int nids, const hk_bootstrap_options *o) {
  hk_status rc = HK_OK;
  hk_bootstrap *b = NULL;
  uint64_t begin_ns = hk_now_ns();
  *out = NULL;
  if (nids < 1 || nids > o->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "%d unique ids for %d ranks: there must be at least one, and no more than ranks",
                   nids, o->nranks);
  hk_boot_id *id = calloc((size_t)nids, sizeof *id);
  uint8_t secret[HK_SECRET_BYTES] = {0};
  if (!id) HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM, "out of memory for %d unique ids", nids), out);
  for (int i = 0; i < nids; i++) {
    HK_TRY(hk_boot_id_decode(&id[i], &ids[i]), out);
    hk_derive(secret, id[i].secret, "family", secret, sizeof secret); /* of all ids, in their order */
  }
  HK_TRY(bootstrap_create(&b, o, secret), out);
  registration g = {.b = b, .ids = id, .nids = nids};
  hk_bootstrap_begin(b, HK_PHASE_INIT, "the init (ranks connect to each other)");
  HK_TRY(bootstrap_meet(&g), out);
  uint64_t met_ns = hk_now_ns();
  hk_member_join(b);
  HK_TRY(hk_overlay_open_all(b, true), out);
  hk_wait_env env = hk_report_begin(b, true);
  HK_TRY(hk_overlay_gather(b, b->contacts, HK_CONTACT_BYTES, &env), out);
  bootstrap_now_known(b);
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "Bootstrap: rank %d of %d joined %016llx in %.1f ms (%.1f for all to come)",
          b->rank, b->nranks, (unsigned long long)b->comm, (double)(hk_now_ns() - begin_ns) * 1e-6,
          (double)(met_ns - begin_ns) * 1e-6);
out:
  explicit_bzero(secret, sizeof secret);
  if (id) explicit_bzero(id, (size_t)nids * sizeof *id);
  free(id);
  const bool early = !b, met = b && b->member;
  if (rc != HK_OK && b) bootstrap_give_up(b, rc); /* first: the report needs a descriptor, and these may be the last */
  /* Not for a wrong argument, which the caller can correct. A root that has ended ignores the report. */
  if (rc != HK_OK && rc != HK_ERR_REMOTE && rc != HK_ERR_ARGUMENT && !met) {
    hk_bootstrap_end_spare(o->spare);
    bootstrap_report_abort(o->settings, ids, nids, o->rank, o->nranks, early);
  }
  if (rc == HK_OK) *out = b;
  return rc;
}

/* ---- children ---- */

/* Differs between the children of a parent, and between the groups of one split. */
static hk_status bootstrap_child_comm(hk_bootstrap *b, const hk_bootstrap *parent, const int *members, uint64_t child) {
  size_t bytes = 16 + 4 * (size_t)b->nranks;
  uint8_t *text = malloc(bytes);
  if (!text) return HK_FAIL(HK_ERR_SYSTEM, "out of memory for %d members", b->nranks);
  hk_put64(text, parent->comm);
  hk_put64(text + 8, child);
  for (int i = 0; i < b->nranks; i++) hk_put32(text + 16 + 4 * i, (uint32_t)members[i]);
  b->comm = hk_derive64(b->family->secret, "child", text, bytes);
  free(text);
  return HK_OK;
}

static hk_status bootstrap_check_members(hk_bootstrap *parent, const int *members, const hk_bootstrap_options *o) {
  if (o->nranks < 1 || o->nranks > parent->nranks || o->rank < 0 || o->rank >= o->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "rank %d of %d is out of range in a child: the parent has %d ranks", o->rank,
                   o->nranks, parent->nranks);
  if (members[o->rank] != parent->rank)
    return HK_FAIL(HK_ERR_INTERNAL, "rank %d of the parent joins its child as member %d, which is rank %d",
                   parent->rank, o->rank, members[o->rank]);
  for (int i = 0; i < o->nranks; i++) {
    if (members[i] < 0 || members[i] >= parent->nranks)
      return HK_FAIL(HK_ERR_ARGUMENT, "member %d of the child is rank %d: the parent has %d ranks", i, members[i],
                     parent->nranks);
    if (hk_event_aborted(parent, members[i]))
      return HK_FAIL(HK_ERR_REMOTE,
                     "rank %d has aborted the communicator and cannot be a member of a new one; leave it out "
                     "(ncclCommShrink)",
                     members[i]);
    if (hk_event_dead(parent, members[i]))
      return HK_FAIL(HK_ERR_REMOTE,
                     "rank %d has died and cannot be a member of a new communicator; leave it out "
                     "(ncclCommShrink)",
                     members[i]);
  }
  return HK_OK;
}

hk_status hk_bootstrap_join_child(hk_bootstrap **out, hk_bootstrap *parent, const int *members, uint64_t child,
                                  const hk_bootstrap_options *o) {
  hk_status rc;
  hk_bootstrap *b = NULL;
  *out = NULL;
  HK_TRY(bootstrap_check_members(parent, members, o), out);
  HK_TRY(bootstrap_create(&b, o, parent->family->secret), out);
  for (int i = 0; i < b->nranks; i++) memcpy(hk_contact_of(b, i), hk_contact_of(parent, members[i]), HK_CONTACT_BYTES);
  HK_TRY(bootstrap_child_comm(b, parent, members, child), out);
  b->parent = parent;
  b->members = members;
  /* relaxed: only this thread writes it */
  hk_phase phase = (hk_phase)atomic_load_explicit(&parent->call.phase, memory_order_relaxed);
  pthread_mutex_lock(&parent->lock);
  /* A failure during a split ends it. Ranks that shrink have not met in the parent, and it may fail until now. */
  b->after_failure = !o->of_living && (phase == HK_PHASE_SHRINK ? parent->failures.broken : parent->call.failed_before);
  pthread_mutex_unlock(&parent->lock);
  hk_bootstrap_begin(b, phase, parent->call.what);
  hk_member_join(b);
  HK_TRY(hk_overlay_open_all(b, false), out);
  hk_wait_env env = hk_report_begin(b, hk_report_bounded(b));
  HK_TRY(hk_overlay_barrier(b, &env), out); /* an ack says only that the member's process runs */
  bootstrap_now_known(b);
out:
  if (rc != HK_OK && b) bootstrap_give_up(b, rc);
  if (rc == HK_OK) *out = b;
  return rc;
}

/* ---- data connections ---- */

uint64_t hk_bootstrap_comm_id(const hk_bootstrap *b) { return b->comm; }
const uint8_t *hk_bootstrap_secret(const hk_bootstrap *b) { return b->family->secret; }

hk_status hk_bootstrap_dial(hk_bootstrap *b, int peer, const union hk_addr *at, uint64_t tag, int *fd) {
  *fd = -1;
  if (peer < 0 || peer >= b->nranks)
    return HK_FAIL(HK_ERR_INTERNAL, "a transport asked for a connection to rank %d of %d", peer, b->nranks);
  if (hk_event_dead(b, peer)) return HK_FAIL(HK_ERR_REMOTE, "rank %d of %d has died", peer, b->nranks);
  hk_wait_env env = bootstrap_env_until(b, (uint64_t)b->o.settings->PEER_TIMEOUT);
  hk_hello h = hk_overlay_hello(b, HK_HELLO_DATA, peer);
  h.tag = tag;
  HK_OR_RETURN(hk_overlay_dial(b, &h, at, &env,
                               "see that rank's output, and check that its interfaces can be reached from here "
                               "(NCCL_SOCKET_IFNAME chooses)",
                               fd));
  hk_fork_forget(*fd); /* owned by the transport from here on */
  return HK_OK;
}

hk_status hk_bootstrap_redial(hk_bootstrap *b, int peer, uint64_t tag, _Atomic(int) *stop, int *fd, bool *gone) {
  uint64_t limit_ns = (uint64_t)b->o.settings->PEER_TIMEOUT * 1000000000u, begin_ns = hk_now_ns();
  hk_wait_env env = {.failure = stop, .shared_failure = b->o.wait->failure, .deadline_ns = begin_ns + limit_ns};
  hk_hello h = hk_overlay_hello(b, HK_HELLO_DATA, peer);
  h.tag = tag;
  *gone = hk_event_dead(b, peer);
  if (*gone) return HK_ERR_REMOTE;
  hk_status rc = hk_overlay_dial(b, &h, NULL, &env, "it is tried again", fd);
  if (rc == HK_OK) hk_fork_forget(*fd); /* owned by the transport from here on */
  /* A host that does not answer takes all of the time; a process that refuses, or a rank that has left, does not. */
  *gone = rc != HK_OK && !atomic_load(stop) && hk_now_ns() - begin_ns < limit_ns / 2;
  return rc;
}
