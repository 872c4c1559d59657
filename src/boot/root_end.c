/* SPDX-License-Identifier: Apache-2.0 */
/* The end of roots: the answers, reports of ranks that are missing, deadlines, and errors that end a root. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>
#include "../base/array.h"
#include "../base/log.h"
#include "../base/param.h"
#include "inquiry.h"
#include "root.h"

enum {
  FIRST_REPORT_SECONDS = 8, /* first report of missing ranks; earlier with a smaller HOCKET_WATCHDOG */
  REPORT_SECONDS = 30,      /* between two reports, at most */
  LINGER_SECONDS = 10       /* a failed root stays so long, to send the cause to late ranks */
};

static void root_reply(const hk_root *r, int at, hk_reply *reply) {
  *reply = (hk_reply){.status = r->status, .salt = r->salt};
  snprintf(reply->text, sizeof reply->text, "%s", r->text);
  if (r->state == HK_ROOT_DONE) memcpy(reply->next, r->entry[(at + 1) % r->entries].contact, HK_CONTACT_BYTES);
}

static void root_send_reply(hk_root *r, int at) {
  hk_root_entry *s = &r->entry[at];
  uint8_t bytes[HK_REPLY_BYTES];
  hk_reply reply;
  root_reply(r, at, &reply);
  hk_root_encode(r, &reply, s->nonce, bytes);
  for (hk_connection *c = s->connection; c; c = c->next)
    (void)hk_connection_send(c, bytes, sizeof bytes); /* a rank that has closed in the meantime needs no answer */
}

void hk_root_end(hk_root *r, hk_root_state state) {
  r->state = state;
  r->ended_ns = hk_now_ns();
  if (r->file) unlink(r->file);
  /* Before any rank is answered: a rank that has the answer may start the next communicator with the same
   * NCCL_COMM_ID, and must not find this root. (The sweep closes the socket: only the listener's thread may.) */
  if (state == HK_ROOT_DONE && r->socket_fd >= 0) shutdown(r->socket_fd, SHUT_RDWR);
  /* Ranks of other processes first: a rank of this one that gets an error may end the process at once. */
  for (int i = 0; i < r->entries; i++)
    if (r->entry[i].connection) root_send_reply(r, i);
  for (int i = 0; i < r->entries; i++) {
    hk_root_waiter *w = r->entry[i].waiter;
    if (!w) continue;
    root_reply(r, i, &w->reply);
    w->done = true;
    r->entry[i].waiter = NULL;
    pthread_cond_signal(&w->cond);
  }
  r->sweep = true;
  hk_service_post(r->listener->service, &r->listener->sweep);
  hk_listener_tick(r->listener);
}

void hk_root_fail(hk_root *r, hk_status status, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(r->text, sizeof r->text, format, args);
  va_end(args);
  r->status = status;
  HK_INFO(HK_SUB_INIT | HK_SUB_BOOTSTRAP, "Bootstrap root: %s", r->text);
  hk_root_end(r, HK_ROOT_FAILED);
}

/* Writes "rank 3" or "ranks 3, 5-7, 9", the ranks whose entries are in `state`; as many as fit. Returns how many there
 * are. */
static int root_list(const hk_root *r, hk_root_entry_state state, char *text, size_t capacity) {
  int count = 0, listed = 0;
  for (int i = 0; i < r->entries; i++) count += r->entry[i].state == state;
  size_t used = (size_t)snprintf(text, capacity, "rank%s ", count > 1 ? "s" : "");
  for (int i = 0; i < r->entries; i++) {
    if (r->entry[i].state != state) continue;
    int first = i;
    /* Ranges stop where the numbering wraps. */
    while (i + 1 < r->entries && r->entry[i + 1].state == state && hk_root_rank(r, i + 1) > hk_root_rank(r, i)) i++;
    char one[48];
    int n = snprintf(one, sizeof one, i > first ? "%s%d-%d" : "%s%d", listed ? ", " : "", hk_root_rank(r, first),
                     hk_root_rank(r, i));
    if (used + (size_t)n + 24 > capacity) continue; /* room for the "and" below */
    memcpy(text + used, one, (size_t)n + 1);
    used += (size_t)n;
    listed += i - first + 1;
  }
  if (listed < count) snprintf(text + used, capacity - used, " and %d more", count - listed);
  return count;
}

/* The only rank that has joined the root. */
static int root_only_rank(const hk_root *r) {
  int at = 0;
  while (r->entry[at].state != HK_ROOT_ENTRY_JOINED) at++;
  return hk_root_rank(r, at);
}

/* Roots of this process that exactly one rank has joined. */
static int root_count_single(const hk_listener *l) {
  int n = 0;
  for (const hk_root *r = l->roots; r; r = r->next) n += r->state == HK_ROOT_GATHERING && r->joined == 1;
  return n;
}

/* Advice for the case that ranks do not join. */
static void root_advise(const hk_root *r, char *text, size_t capacity) {
  char at[HK_ADDR_TEXT];
  int single = root_count_single(r->listener);
  if (r->socket_fd >= 0)
    snprintf(text, capacity,
             "each must be started with the same address (NCCL_COMM_ID, MASTER_ADDR) and reach this host");
  else if (r->file)
    snprintf(text, capacity, "each must find the file %s", r->file);
  else if (r->joined == 1 && single > 1)
    snprintf(text, capacity,
             "%d unique ids of this process have one rank each: one rank calls ncclGetUniqueId and gives the 128 bytes "
             "to all others",
             single);
  else if (r->joined == 1)
    snprintf(
        text, capacity,
        "only rank %d has come: if each rank calls ncclGetUniqueId, each has an id of its own and waits alone; one "
        "rank calls it and gives the 128 bytes to all others, or all are started with NCCL_COMM_ID=host:port",
        root_only_rank(r));
  else
    snprintf(text, capacity, "each must be started with this unique id and reach this host at %s",
             hk_addr_format(&r->listener->contact.at[0], at));
}

/* Ranks may be slow to start, so this is no error yet; but only the root knows which ones are missing. */
static void root_report_missing(hk_root *r, uint64_t waited_ns) {
  char list[512], advice[320];
  uint64_t first = (uint64_t)r->settings->WATCHDOG;
  if (first > FIRST_REPORT_SECONDS) first = FIRST_REPORT_SECONDS;
  if (!hk_inquiry_due(&r->reported_ns, waited_ns, first * HK_SECOND_NS, REPORT_SECONDS * HK_SECOND_NS)) return;
  int missing = root_list(r, HK_ROOT_ENTRY_EMPTY, list, sizeof list);
  if (!missing) return;
  root_advise(r, advice, sizeof advice);
  HK_WARN("after %llu s %d of %d ranks have joined%s, and %s %s missing: %s (it gives up after %lld s, "
          "HOCKET_BOOTSTRAP_TIMEOUT)",
          (unsigned long long)(waited_ns / HK_SECOND_NS), r->joined, r->entries,
          r->nroots > 1 ? " at this one of several roots" : "", list, missing > 1 ? "are" : "is", advice,
          (long long)r->settings->BOOTSTRAP_TIMEOUT);
}

static void root_check_deadlines(hk_root *r, uint64_t now) {
  uint64_t limit = (uint64_t)r->settings->BOOTSTRAP_TIMEOUT, waited_ns = hk_ago_ns(now, r->first_ns);
  char list[512], advice[320];
  if (waited_ns >= limit * HK_SECOND_NS) {
    int missing = root_list(r, HK_ROOT_ENTRY_EMPTY, list, sizeof list);
    if (!missing) missing = root_list(r, HK_ROOT_ENTRY_LOST, list, sizeof list);
    root_advise(r, advice, sizeof advice);
    hk_root_fail(r, HK_ERR_REMOTE, "%s of %d %s not joined after %llu s, %d %s; %s", list, r->nranks,
                 missing > 1 ? "have" : "has", (unsigned long long)limit, r->joined, r->joined == 1 ? "has" : "have",
                 advice);
    return;
  }
  root_report_missing(r, waited_ns);
  for (int i = 0; i < r->entries; i++) {
    if (r->entry[i].state != HK_ROOT_ENTRY_LOST || hk_ago_ns(now, r->entry[i].lost_ns) < r->entry[i].back_ns) continue;
    (void)root_list(r, HK_ROOT_ENTRY_LOST, list, sizeof list);
    hk_root_fail(r, HK_ERR_REMOTE,
                 "%s of %d joined and then died (connection closed) while other ranks had yet to come; see the output "
                 "of that process",
                 list, r->nranks);
    return;
  }
}

static void root_free(hk_root *r) {
  hk_listener *l = r->listener;
  HK_LIST_REMOVE(l->roots, r, next);
  if (r->socket_fd >= 0) {
    hk_service_remove(l->service, r->socket_fd);
    hk_boot_close(r->socket_fd);
  }
  free(r->entry);
  free(r->file);
  explicit_bzero(r->secret, sizeof r->secret);
  free(r);
  hk_listener_put_inside(l);
}

void hk_root_drop(hk_root_entry *s) {
  for (hk_connection *c = s->connection, *next; c; c = next) {
    next = c->next;
    hk_connection_free(c, false);
  }
  s->connection = NULL;
}

void hk_root_encode(const hk_root *r, hk_reply *reply, const uint8_t nonce[HK_NONCE_BYTES],
                    uint8_t out[HK_REPLY_BYTES]) {
  if (reply->status == HK_ERR_SYSTEM) reply->status = HK_ERR_REMOTE;
  hk_reply_encode(out, reply, nonce, r->secret);
}

void hk_roots_sweep(hk_listener *l) {
  for (hk_root *r = l->roots, *next; r; r = next) {
    next = r->next;
    if (!r->sweep) continue;
    r->sweep = false;
    for (int i = 0; i < r->entries; i++) hk_root_drop(&r->entry[i]);
    if (r->state == HK_ROOT_DONE) root_free(r);
  }
}

bool hk_roots_expire(hk_listener *l, uint64_t now) {
  for (hk_root *r = l->roots, *next; r; r = next) {
    next = r->next;
    if (r->state == HK_ROOT_GATHERING && r->nranks)
      root_check_deadlines(r, now);
    else if (r->state == HK_ROOT_GATHERING &&
             hk_ago_ns(now, r->born_ns) >= (uint64_t)r->settings->ID_LIFETIME * HK_SECOND_NS)
      root_free(r);
    else if (r->state == HK_ROOT_FAILED && !r->sweep && hk_ago_ns(now, r->ended_ns) >= LINGER_SECONDS * HK_SECOND_NS)
      root_free(r);
  }
  return l->roots;
}

void hk_roots_accept_again(hk_listener *l) {
  for (hk_root *r = l->roots; r; r = r->next)
    if (r->socket_fd >= 0 && r->state != HK_ROOT_DONE) hk_service_modify(l->service, r->socket_fd, EPOLLIN);
}
