/* SPDX-License-Identifier: Apache-2.0 */
/* Families and members: the ranks of this process that can be reached, by secret. Connections and messages for a rank
 * that has not joined yet are kept, because its peers may be a little faster. After the rank has left they are
 * refused. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include "../base/array.h"
#include "../base/log.h"
#include "../base/param.h"
#include "internal.h"

/* Ranks that wait for the same event give up within this time of each other. */
#define GIVING_UP_NS 3000000000ull

static unsigned family_bucket_of(uint64_t comm, int rank) {
  uint64_t h = (comm ^ (uint64_t)(unsigned)rank * 0x9e3779b97f4a7c15u) * 0x9e3779b97f4a7c15u;
  return (unsigned)(h >> 48) % HK_MEMBER_BUCKETS;
}

static hk_bootstrap *family_find_member(hk_listener *l, uint64_t comm, int rank) {
  hk_bootstrap *b = l->members[family_bucket_of(comm, rank)];
  while (b && (b->comm != comm || b->rank != rank)) b = b->member_next;
  return b;
}

static bool family_has_gone(const hk_family *f, uint64_t comm, int rank) {
  for (unsigned i = 0; i < f->ngone && i < HK_ARRAY_LENGTH(f->gone); i++)
    if (f->gone[i].comm == comm && f->gone[i].rank == rank) return true;
  return false;
}

static hk_family *family_find_family(hk_listener *l, uint64_t key) {
  hk_family *f = l->families;
  while (f && f->key != key) f = f->next;
  return f;
}

static void family_free_early(hk_early *p) {
  hk_boot_close(p->fd);
  free(p->message);
  free(p);
}

hk_status hk_family_get(hk_family **out, hk_listener *l, const uint8_t secret[HK_SECRET_BYTES]) {
  hk_status rc = HK_OK;
  uint64_t key = hk_derive64(secret, "family", NULL, 0);
  hk_listener_lock();
  hk_family *f = family_find_family(l, key);
  if (!f) {
    f = calloc(1, sizeof *f);
    if (!f) HK_GIVE_UP(HK_FAIL(HK_ERR_SYSTEM, "out of memory for a communicator's secret"), out);
    f->key = key;
    f->early_end = &f->early;
    memcpy(f->secret, secret, sizeof f->secret);
    f->next = l->families;
    l->families = f;
  }
  f->users++;
out:
  hk_listener_unlock();
  *out = f;
  return rc;
}

void hk_family_put(hk_listener *l, hk_family *f) {
  hk_listener_lock();
  if (--f->users == 0) {
    HK_LIST_REMOVE(l->families, f, next);
    for (hk_early *p = f->early, *next; p; p = next) {
      next = p->next;
      family_free_early(p);
    }
    explicit_bzero(f->secret, sizeof f->secret);
    free(f);
  }
  hk_listener_unlock();
}

static void family_add_early(hk_listener *l, hk_family *f, hk_early *p) {
  p->since_ns = hk_now_ns();
  p->next = NULL;
  *f->early_end = p;
  f->early_end = &p->next;
  hk_listener_tick(l);
}

/* True if the peer has closed the connection. */
static bool family_is_dead(const hk_early *p) {
  char byte;
  if (p->message) return false;
  ssize_t n = recv(p->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
}

/* A rank may begin a split or a shrink at any time, so connections that wait for it do not expire. */
bool hk_families_expire(hk_listener *l, uint64_t now) {
  uint64_t limit = (uint64_t)l->settings->BOOTSTRAP_TIMEOUT * 1000000000u;
  bool some = false;
  for (hk_family *f = l->families; f; f = f->next) {
    for (hk_early **at = &f->early; *at;) {
      hk_early *p = *at;
      if (hk_ago_ns(now, p->since_ns) <= limit || !family_is_dead(p)) {
        at = &p->next;
        continue;
      }
      *at = p->next;
      family_free_early(p);
    }
    f->early_end = &f->early;
    while (*f->early_end) f->early_end = &(*f->early_end)->next;
    some |= f->early != NULL;
  }
  return some;
}

/* Delivers to the member, and frees `p`. */
static void family_deliver_early(hk_bootstrap *b, hk_early *p) {
  if (p->message) {
    hk_overlay_deliver(b, p->message);
    p->message = NULL;
  } else if (p->kind == HK_HELLO_DATA) {
    hk_overlay_keep(b, p->from, p->tag, p->fd);
    p->fd = -1;
  } else {
    hk_hello h = {.kind = p->kind, .from = p->from, .to = p->to, .round = p->round};
    if (hk_overlay_accept(b, &h, p->fd)) p->fd = -1;
  }
  family_free_early(p);
}

void hk_member_join(hk_bootstrap *b) {
  hk_listener_lock();
  hk_family *f = b->family;
  hk_bootstrap **bucket = &b->listener->members[family_bucket_of(b->comm, b->rank)];
  b->member_next = *bucket;
  *bucket = b;
  b->member = true;
  /* Two descriptors for the service, two for the links of each round, and as many again for transports. */
  hk_want_files(256 + 16 * ++b->listener->nmembers);
  for (hk_early **at = &f->early; *at;) {
    hk_early *p = *at;
    if (p->comm != b->comm || p->to != b->rank) {
      at = &p->next;
      continue;
    }
    *at = p->next;
    if (!p->next) f->early_end = at;
    family_deliver_early(b, p);
  }
  hk_listener_unlock();
}

void hk_member_leave(hk_bootstrap *b) {
  if (!b->member) return;
  hk_listener_lock();
  HK_LIST_REMOVE(b->listener->members[family_bucket_of(b->comm, b->rank)], b, member_next);
  b->member = false;
  b->listener->nmembers--;
  hk_family *f = b->family;
  unsigned i = f->ngone++ % HK_ARRAY_LENGTH(f->gone);
  f->gone[i].comm = b->comm;
  f->gone[i].rank = b->rank;
  hk_listener_unlock();
  const hk_wait_env env = {.spins = 0};
  hk_waiter w;
  hk_wait_begin(&w, &env);
  /* acquire: pairs with the release of a sender, after which it does not use this rank */
  while (atomic_load_explicit(&b->senders, memory_order_acquire)) (void)hk_wait_pause(&w);
}

bool hk_member_send(hk_bootstrap *from, int to, hk_message *m) {
  bool there = true;
  hk_listener_lock();
  hk_bootstrap *b = family_find_member(from->listener, from->comm, to);
  if (b) {
    /* relaxed: the listener's lock orders it before hk_member_leave */
    atomic_fetch_add_explicit(&b->senders, 1, memory_order_relaxed);
  } else if (family_has_gone(from->family, from->comm, to)) {
    free(m);
    there = false;
  } else {
    hk_early *p = calloc(1, sizeof *p);
    if (p) {
      *p = (hk_early){.comm = from->comm, .to = to, .from = m->from, .message = m, .fd = -1};
      family_add_early(from->listener, from->family, p);
    } else {
      free(m);
      there = false;
    }
  }
  hk_listener_unlock();
  if (b) {
    hk_overlay_deliver(b, m);
    /* release: hk_member_leave sees the end of this use */
    atomic_fetch_sub_explicit(&b->senders, 1, memory_order_release);
  }
  return there;
}

/* Sends the ack, which proves the secret. */
static bool family_acknowledge(hk_connection *c, const hk_family *f, const hk_hello *h, hk_ack ack) {
  uint8_t bytes[HK_ACK_BYTES];
  hk_ack_encode(bytes, ack, h->nonce, f->secret);
  return hk_connection_send(c, bytes, sizeof bytes);
}

static void family_keep_connection(hk_listener *l, hk_family *f, hk_connection *c, const hk_hello *h, hk_early *p) {
  *p = (hk_early){
      .comm = h->comm, .to = h->to, .from = h->from, .kind = h->kind, .round = h->round, .tag = h->tag, .fd = c->fd};
  family_add_early(l, f, p);
  hk_connection_free(c, true);
}

/* The peer tries again. */
static void family_refuse(hk_listener *l, hk_connection *c, const hk_family *f, const hk_hello *h, int why) {
  (void)hk_listener_refused(l, why);
  (void)family_acknowledge(c, f, h, HK_ACK_NO_ROOM);
  hk_connection_free(c, false);
}

hk_ack hk_member_activity(hk_listener *l, const hk_family *f, uint64_t comm, int rank, hk_activity *out) {
  *out = (hk_activity){.waits_for = -1, .device = -1};
  hk_bootstrap *b = family_find_member(l, comm, rank);
  if (!b) return family_has_gone(f, comm, rank) ? HK_ACK_GONE : HK_ACK_UNKNOWN;
  if (b->o.report) b->o.report(b->o.arg, out);
  /* relaxed, all: each value is independent and may be a moment old */
  int awaited = atomic_load_explicit(&b->call.awaited, memory_order_relaxed);
  int phase = atomic_load_explicit(&b->call.phase, memory_order_relaxed);
  uint64_t gave_up = atomic_load_explicit(&b->call.gave_up_ns, memory_order_relaxed);
  if (gave_up && hk_ago_ns(hk_now_ns(), gave_up) > GIVING_UP_NS)
    awaited = -1;
  else if (gave_up)
    phase = atomic_load_explicit(&b->call.gave_up_in, memory_order_relaxed);
  if (awaited >= 0) out->waits_for = awaited;
  if (phase != HK_PHASE_IDLE) {
    out->phase = (uint8_t)phase;
    out->phase_ms = hk_ago_ns(hk_now_ns(), atomic_load_explicit(&b->call.phase_since_ns, memory_order_relaxed)) /
                    1000000u; /* as above */
  }
  return HK_ACK_OK;
}

static void family_answer_question(hk_listener *l, hk_connection *c, const hk_family *f, const hk_hello *h) {
  uint8_t bytes[HK_ACK_BYTES + HK_ACTIVITY_BYTES];
  hk_activity a;
  hk_ack_encode(bytes, hk_member_activity(l, f, h->comm, h->to, &a), h->nonce, f->secret);
  hk_activity_encode(bytes + HK_ACK_BYTES, &a, h->nonce, f->secret);
  (void)hk_connection_send(c, bytes, sizeof bytes); /* a peer that has closed in the meantime needs no answer */
  hk_connection_free(c, false);
}

void hk_family_hello(hk_listener *l, hk_connection *c, const hk_hello *h) {
  hk_family *f = family_find_family(l, h->key);
  if (c->plain)
    HK_INFO(HK_SUB_BOOTSTRAP, "a connection of rank %d is refused: it is not encrypted, and this process has a key",
            h->from);
  if (!f || !hk_hello_proved(c->in, f->secret) || c->plain) {
    hk_connection_free(c, false);
    return;
  }
  if (h->process != l->contact.process) { /* it goes on with the next address of the process that it wants */
    HK_INFO(HK_SUB_BOOTSTRAP, "a connection of rank %d is for another process (rank %d), whose address is this host's",
            h->from, h->to);
    hk_connection_free(c, false);
    return;
  }
  if (h->kind == HK_HELLO_ASK) {
    family_answer_question(l, c, f, h);
    return;
  }
  if (c->on_spare) {
    family_refuse(l, c, f, h, EMFILE);
    return;
  }
  hk_bootstrap *b = family_find_member(l, h->comm, h->to);
  bool gone = !b && family_has_gone(f, h->comm, h->to);
  hk_early *p = b || gone ? NULL : calloc(1, sizeof *p); /* first: the ack is a promise to keep the connection */
  if (!b && !gone && !p) {
    family_refuse(l, c, f, h, ENOMEM);
    return;
  }
  if (!family_acknowledge(c, f, h, gone ? HK_ACK_GONE : HK_ACK_OK) || gone) {
    free(p);
    hk_connection_free(c, false);
    return;
  }
  if (!b) {
    family_keep_connection(l, f, c, h, p);
    return;
  }
  int fd = c->fd;
  hk_connection_free(c, true);
  if (h->kind == HK_HELLO_DATA)
    hk_overlay_keep(b, h->from, h->tag, fd);
  else if (!hk_overlay_accept(b, h, fd))
    hk_boot_close(fd);
}
