/* SPDX-License-Identifier: Apache-2.0 */
/* Moves messages to slots and back, in order. */
#include <errno.h>
#include <string.h>
#include <sys/socket.h>
#include "../base/log.h"
#include "../transport/net/net.h"
#include "netplugin.h"

enum {
  HEADER = 1,
  PIECE = 2,
  WHOLE = 3,
  REFER_FROM = 4096 /* shorter pieces are copied: a reference would save nothing and has to wait for its credit */
};

static pair_request *message(pair *p, uint64_t at) { return &p->requests[at % PAIR_MESSAGES]; }

/* ---- which message is next ---- */

/* Takes what has come of marks. An end of the control connection is no error: the data connection reports it. */
static void take_marks(pair *p) {
  for (;;) {
    ssize_t n = recv(p->fd, (char *)&p->mark + p->mark_moved, sizeof p->mark - p->mark_moved, MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    p->mark_moved += (size_t)n;
    if (p->mark_moved < sizeof p->mark) continue;
    p->mark_moved = 0;
    p->marks[p->nmarks++ % PAIR_MESSAGES] = (hk_net_mark){.tag = p->mark.tag, .more = p->mark.more};
  }
}

static void send_marks(pair *p) {
  while (p->nmarks < p->posted) {
    const hk_net_mark *m = &message(p, p->nmarks)->mark;
    p->mark = (pair_mark){.tag = m->tag, .more = m->more};
    ssize_t n = send(p->fd, (const char *)&p->mark + p->mark_moved, sizeof p->mark - p->mark_moved,
                     MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return;
    p->mark_moved += (size_t)n;
    if (p->mark_moved < sizeof p->mark) continue;
    p->mark_moved = 0;
    p->nmarks++;
  }
}

static bool read_mark(pair *p, uint64_t at, hk_net_mark *m) {
  if (p->link.placed) return hk_net_read_mark(&p->link, at, m);
  if (at < p->nmarks) *m = p->marks[at % PAIR_MESSAGES];
  return at < p->nmarks;
}

/* The number of the next message with this tag: of the receive whose messages have not all been posted yet. */
static bool next_with(pair *p, int tag, uint64_t *at) {
  hk_net_mark m = {.more = true};
  *at = p->posted;
  if (!p->theirs.groups) return true;
  if (!p->link.placed) take_marks(p);
  for (; m.more && read_mark(p, *at, &m); ++*at) {
    const pair_request *r = message(p, *at);
    if (m.tag == tag && !(r->used && r->at == *at)) return true;
  }
  return false;
}

pair_request *pair_send(pair *p, void *data, size_t bytes, int tag) {
  uint64_t at;
  if (!next_with(p, tag, &at)) return NULL;
  pair_request *r = message(p, at);
  if (r->used) return NULL;
  *r = (pair_request){.pair = p, .at = at, .n = 1, .data = data, .room = bytes, .bytes = bytes, .used = true};
  while (message(p, p->posted)->used && message(p, p->posted)->at == p->posted) p->posted++;
  return r;
}

pair_request *pair_receive(pair *p, int n, void *const *data, const size_t *bytes, const int *tags) {
  pair_request *first = message(p, p->posted);
  for (int i = 0; i < n; i++)
    if (message(p, p->posted + (uint64_t)i)->used) return NULL;
  for (int i = 0; i < n; i++, p->posted++)
    *message(p, p->posted) = (pair_request){.pair = p,
                                            .at = p->posted,
                                            .n = i ? 0 : n,
                                            .mark = {.tag = tags ? tags[i] : 0, .more = i + 1 < n},
                                            .data = data[i],
                                            .room = bytes[i],
                                            .used = true};
  return first;
}

/* Messages of a receive end in order. */
bool pair_is_over(pair_request *r, int *sizes) {
  if (r->flush) {
    if (r->over) r->used = false;
    return r->over;
  }
  if (!message(r->pair, r->at + (uint64_t)r->n - 1)->over) return false;
  uint64_t first = r->at, n = (uint64_t)r->n;
  for (uint64_t i = 0; i < n; i++) {
    pair_request *m = message(r->pair, first + i);
    if (sizes) sizes[i] = (int)m->bytes;
    m->used = false;
  }
  return true;
}

pair_request *pair_flush(pair *p, void *data) {
  pair_request *r = p->flushes;
  while (r < p->flushes + PAIR_REQUESTS && r->used) r++;
  if (r == p->flushes + PAIR_REQUESTS) return NULL;
  *r = (pair_request){.pair = p, .data = data, .last = p->done, .used = true, .flush = true};
  return r;
}

/* What arrived counts, also if the peer is gone: then the progress function fails. */
hk_status pair_flushed(pair_request *r) {
  (void)pair_progress(r->pair);
  return hk_net_gpu_visible(&r->pair->link, r->data, r->last, &r->over);
}

/* ---- sending ---- */

/* The card reads it from the caller's memory, which is registered. */
static void send_whole(pair *p, pair_request *r) {
  hk_link *l = &p->link;
  hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  if (r->bytes) s->ref = (hk_ref){.region = 0, .offset = (uint64_t)(uintptr_t)r->data};
  hk_link_publish(l, (uint32_t)r->bytes, WHOLE, r->bytes ? HK_SLOT_REF : 0);
  r->moved = r->bytes;
  r->begun = true;
}

static void send_header(pair *p, pair_request *r) {
  hk_link *l = &p->link;
  uint64_t bytes = r->bytes;
  size_t with = r->bytes <= PAIR_IN_HEADER ? r->bytes : 0;
  char *at = hk_link_send_buffer(l, sizeof bytes + with);
  memcpy(at, &bytes, sizeof bytes);
  if (with) memcpy(at + sizeof bytes, r->data, with);
  hk_link_publish(l, (uint32_t)(sizeof bytes + with), HEADER, 0);
  r->moved = with;
  r->begun = true;
}

static void send_piece(pair *p, pair_request *r) {
  hk_link *l = &p->link;
  uint32_t flags = 0;
  size_t left = r->bytes - r->moved, n = left < l->slot_bytes ? left : l->slot_bytes;
  hk_slot *s = &l->slots[(uint32_t)l->done & l->mask];
  if (l->by_ref && n >= REFER_FROM && hk_link_refer(l, r->data + r->moved, n, &s->ref))
    flags = HK_SLOT_REF;
  else
    memcpy(hk_link_send_buffer(l, n), r->data + r->moved, n);
  hk_link_publish(l, (uint32_t)n, PIECE, flags);
  r->moved += n;
}

/* Fills slots from the requests, in order; true if one was filled. */
static bool fill(pair *p, uint64_t *at) {
  bool any = false;
  for (; *at < p->posted; ++*at) {
    pair_request *r = message(p, *at);
    while (!r->begun || r->moved < r->bytes) {
      if (!hk_link_can_send(&p->link, r->bytes)) return any;
      if (p->link.placed)
        send_whole(p, r);
      else if (!r->begun)
        send_header(p, r);
      else
        send_piece(p, r);
      any = true;
    }
    r->last = p->link.done;
  }
  return any;
}

static void end_sends(pair *p) {
  /* acquire: pairs with the provider's release: its reads of the user's memory are over before the user is notified */
  uint64_t given = atomic_load_explicit(&p->link.heads->value, memory_order_acquire);
  for (; p->done < p->posted; p->done++) {
    pair_request *r = message(p, p->done);
    if (!r->begun || r->moved < r->bytes || r->last > given) return;
    r->over = true;
  }
}

/* ---- receiving ---- */

static hk_status nonsense(pair *p, const hk_slot *s) {
  char text[HK_ADDR_TEXT];
  p->step = PAIR_BROKEN;
  return HK_FAIL(
      HK_ERR_REMOTE,
      "the net plugin got a message of kind %u and %u bytes from %s when none was expected: do both sides run "
      "the same version of it?",
      s->signature, s->bytes, hk_addr_format(&p->control, text));
}

static hk_status begin(pair *p, pair_request *r, const hk_slot *s) {
  uint64_t bytes;
  if (s->signature != HEADER || s->bytes < sizeof bytes) return nonsense(p, s);
  const char *from = hk_link_recv_data(&p->link);
  memcpy(&bytes, from, sizeof bytes);
  size_t with = bytes <= PAIR_IN_HEADER ? (size_t)bytes : 0;
  if (s->bytes != sizeof bytes + with) return nonsense(p, s);
  if (bytes > r->room) {
    char text[HK_ADDR_TEXT];
    p->step = PAIR_BROKEN;
    return HK_FAIL(
        HK_ERR_REMOTE,
        "a message of %llu bytes came from %s for a receive of %zu bytes: do both sides run the same program?",
        (unsigned long long)bytes, hk_addr_format(&p->control, text), r->room);
  }
  if (with) memcpy(r->data, from + sizeof bytes, with);
  r->bytes = (size_t)bytes;
  r->moved = with;
  r->begun = true;
  return HK_OK;
}

static hk_status take_piece(pair *p, pair_request *r, const hk_slot *s) {
  if (s->signature != PIECE || s->bytes > r->bytes - r->moved) return nonsense(p, s);
  const char *from = hk_link_recv_data(&p->link);
  if (!from) return HK_ERR_REMOTE;
  if (from != r->data + r->moved) memcpy(r->data + r->moved, from, s->bytes);
  r->moved += s->bytes;
  return HK_OK;
}

/* Sends the places of messages, as far ahead as possible, and ends the requests whose message has arrived. */
static hk_status drain_wholes(pair *p, bool *any) {
  hk_link *l = &p->link;
  for (; p->done < p->posted; p->done++) {
    for (; l->offered < p->posted && hk_link_may_offer(l); l->offered++) {
      const pair_request *next = message(p, l->offered);
      uint32_t room = next->room > UINT32_MAX ? UINT32_MAX : (uint32_t)next->room;
      hk_net_offer_marked(l, l->offered, next->data, room, next->mark);
    }
    if (!hk_link_can_recv(l)) {
      hk_link_set_waiting(l, HK_LINK_WAITS);
      return HK_OK;
    }
    pair_request *r = message(p, p->done);
    const hk_slot *s = hk_link_recv_slot(l);
    if (s->signature != WHOLE || (s->bytes && hk_link_recv_data(l) != r->data)) return nonsense(p, s);
    r->bytes = s->bytes;
    r->over = true;
    hk_link_release(l);
    *any = true;
  }
  return HK_OK;
}

/* Empties slots into the requests, and reports what the next one waits for. */
static hk_status drain(pair *p, bool *any) {
  hk_link *l = &p->link;
  if (l->placed) return drain_wholes(p, any);
  if (p->mine.groups) send_marks(p);
  for (; p->done < p->posted; p->done++) {
    pair_request *r = message(p, p->done);
    while (!r->begun || r->moved < r->bytes) {
      if (!hk_link_can_recv(l)) {
        size_t left = r->bytes - r->moved;
        hk_link_set_waiting(l, HK_LINK_WAITS);
        /* a header must not be written there */
        l->want = r->begun && left > HK_SLOT_INLINE ? r->data + r->moved : NULL;
        l->want_bytes = left > UINT32_MAX ? UINT32_MAX : (uint32_t)left;
        return HK_OK;
      }
      const hk_slot *s = hk_link_recv_slot(l);
      HK_OR_RETURN(r->begun ? take_piece(p, r, s) : begin(p, r, s));
      hk_link_release(l);
      *any = true;
    }
    r->over = true;
  }
  return HK_OK;
}

hk_status pair_progress(pair *p) {
  hk_status rc = HK_OK;
  bool any = true, moved;
  if (p->step != PAIR_READY) return HK_ERR_REMOTE;
  /* Tries again after progress: what arrived may allow the next piece. */
  for (int turns = 0; any && turns < 8; turns++) {
    any = moved = false;
    if (p->sends) {
      uint64_t at = p->done;
      any = fill(p, &at);
    } else {
      HK_TRY(drain(p, &any), out); /* this also reports that it waits, without which nothing is received */
    }
    HK_TRY(hk_transport_net.progress(p->state, &moved), out);
    if (p->sends)
      end_sends(p);
    else
      HK_TRY(drain(p, &any), out);
    any |= moved;
  }
out:
  if (rc != HK_OK) p->step = PAIR_BROKEN;
  return rc;
}
