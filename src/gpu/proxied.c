/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a proxied link: its memory, and slots from the kernel to the transport and back (proxy.h). */
#include "proxied.h"
#include <stdlib.h>
#include <string.h>
#include "../kernels/cuda/work.h"
#include "lines.h"

/* ---- memory ---- */

static size_t proxied_pages(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }
static size_t proxied_words_bytes(const hk_transport_env *e) {
  return (size_t)e->nslots * HK_GPU_WORD_STRIDE * sizeof(uint64_t);
}

hk_memory *hk_gpu_proxied_payload(hk_gpu_proxied *f, int i) {
  const hk_transport_payload *t = f->link.owner->transport->payload;
  hk_memory *const pinned[] = {&f->small, &f->payload, &f->lines};
  if (i < 3) return pinned[i];
  return i == 3 && t && t->gpu_memory && f->on_gpu ? t->gpu_memory(&f->link) : NULL;
}

static size_t proxied_lines_bytes(const hk_transport_env *e) {
  return (size_t)e->nslots * HK_GPU_LL_LINES(HK_GPU_LL_NET_MAX);
}
static size_t proxied_control_bytes(const hk_transport_env *e) {
  return proxied_pages(e->nslots * sizeof(hk_slot) + sizeof(hk_head));
}
size_t hk_gpu_proxied_bytes(const hk_transport_env *e) { return proxied_pages((size_t)e->nslots * e->slot_bytes); }

_Static_assert((int)HK_GPU_LL_NET_MAX <= (int)HK_LINK_SMALL, "what comes in lines is the CPU's if small slots are");
/* If slots are hardly larger than small ones, separate small slots save nothing. */
static bool proxied_grows(const hk_gpu_proxy_env *e, hk_transport_state *via, const hk_link_key *key) {
  return e->env->slot_bytes >= (size_t)4 * HK_LINK_SMALL && via->transport->payload &&
         via->transport->payload->grows(via, key);
}

hk_status hk_gpu_proxied_new(const hk_gpu_proxy_env *e, hk_transport_state *via, const hk_link_key *key,
                             hk_gpu_proxied **end) {
  hk_status rc = HK_OK;
  hk_gpu_proxied *f = aligned_alloc(HK_CACHE_LINE, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory for a link to rank %u", key->peer);
  memset(f, 0, sizeof *f);
  f->channel = key->channel;
  f->link.peer = key->peer;
  f->link.kind = key->kind;
  f->link.owner = via;
  if (key->kind == HK_LINK_RECV || e->sends_direct) f->link.gpu = e->device;
  HK_TRY(e->pinned(e->arg, false, proxied_pages(proxied_words_bytes(e->env)), &f->words), undo);
  HK_TRY(e->pinned(e->arg, false, proxied_control_bytes(e->env), &f->fifo), undo);
  if (proxied_grows(e, via, key)) {
    HK_TRY(e->pinned(e->arg, true, (size_t)e->env->nslots * HK_LINK_SMALL, &f->small), undo);
    f->link.small = f->small.host;
    f->link.small_bytes = HK_LINK_SMALL;
  } else {
    HK_TRY(e->pinned(e->arg, true, hk_gpu_proxied_bytes(e->env), &f->payload), undo);
  }
  f->link.slots = f->fifo.host;
  f->link.payload = f->payload.host;
  *end = f;
  return HK_OK;
undo:
  hk_gpu_proxied_free(e, f);
  return rc;
}

/* A link that grows reserves the GPU's memory when it grows. */
static bool proxied_reserves(const hk_gpu_proxied *f) {
  return f->link.owner->transport->payload && f->link.gpu && !f->link.small;
}

hk_status hk_gpu_proxied_prepare(hk_gpu_proxied *f, hk_transport_state *via, const hk_link_key *key) {
  return proxied_reserves(f) ? via->transport->payload->prepare(via, key, &f->link) : HK_OK;
}

hk_status hk_gpu_proxied_reserve(hk_gpu_proxied *f) {
  char *at; /* unused: the transport keeps the address */
  return proxied_reserves(f) ? f->link.owner->transport->payload->reserve(&f->link, &at) : HK_OK;
}

hk_status hk_gpu_proxied_open(hk_gpu_proxied *f, hk_transport_state *via, const hk_link_key *key) {
  hk_status rc = via->transport->open(via, key, &f->link);
  f->opened = rc == HK_OK;
  /* Read here, under the proxy's lock: the transport's progress may take link.gpu back while the link is bound. */
  f->on_gpu = f->link.gpu != NULL;
  f->data = f->link.payload;
  return rc;
}

/* Pins the transport's own memory: headers and head counter, and payloads in host memory, each in whole pages. */
static hk_status proxied_pin_others(const hk_gpu_proxy_env *e, hk_gpu_proxied *f) {
  hk_device *d = e->device;
  hk_link *l = &f->link;
  if ((void *)l->slots != f->fifo.host) {
    HK_OR_RETURN(d->ops->memory->release(d, &f->fifo));
    HK_OR_RETURN(d->ops->memory->pin(d, l->slots, proxied_control_bytes(e->env), &f->fifo));
  }
  if (f->link.small || f->data == f->payload.host) return HK_OK;
  e->unpinned(e->arg, &f->payload);
  if (!f->on_gpu) HK_OR_RETURN(d->ops->memory->pin(d, f->data, hk_gpu_proxied_bytes(e->env), &f->payload));
  return HK_OK;
}

/* Slot i's lines. */
static char *proxied_lines_at(const hk_gpu_proxied *f, uint32_t i) {
  return (char *)f->lines.host + (size_t)i * HK_GPU_LL_LINES(HK_GPU_LL_NET_MAX);
}

void hk_gpu_proxied_clear_lines(hk_gpu_proxied *f) {
  for (uint32_t i = 0; f->lines.host && i <= f->link.mask; i++)
    hk_gpu_lines_refresh(proxied_lines_at(f, i), hk_gpu_line_flag(f->link.done, 0), HK_GPU_LL_NET_MAX);
}

hk_status hk_gpu_proxied_bind(const hk_gpu_proxy_env *e, hk_gpu_proxied *f, hk_gpu_link *out) {
  HK_OR_RETURN(proxied_pin_others(e, f));
  out->small = f->small.base;
  out->data = f->on_gpu ? f->data : f->payload.base;
  if (f->link.delivers_ref) {
    HK_OR_RETURN(e->pinned(e->arg, false, hk_gpu_proxied_bytes(e->env), &f->own));
    f->data = f->own.host;
    out->data = f->own.base;
  }
  /* The CPU converts between payloads and lines, so it does not matter whether the other end has lines. */
  if (!f->on_gpu || f->link.small) {
    HK_OR_RETURN(e->pinned(e->arg, true, proxied_lines_bytes(e->env), &f->lines));
    hk_gpu_proxied_clear_lines(f);
    out->lines = f->lines.base;
  }
  out->word = f->words.base;
  out->head = (uint64_t *)(void *)((char *)f->fifo.base + ((char *)&f->link.heads->value - (char *)f->fifo.host));
  return HK_OK;
}

hk_status hk_gpu_proxied_grow(hk_gpu_proxied *f, char *on_gpu, const hk_memory *host) {
  if (!on_gpu) f->payload = *host;
  f->on_gpu = on_gpu != NULL;
  f->data = on_gpu ? on_gpu : host->host;
  return f->link.owner->transport->payload->grow(&f->link, f->data, !on_gpu);
}

/* Failures are logged; nothing else can be done about them. */
void hk_gpu_proxied_free(const hk_gpu_proxy_env *e, hk_gpu_proxied *f) {
  hk_device *d = e->device;
  (void)d->ops->memory->release(d, &f->words);
  (void)d->ops->memory->release(d, &f->own);
  (void)d->ops->memory->release(d, &f->lines);
  (void)d->ops->memory->release(d, &f->fifo);
  (void)d->ops->memory->release(d, &f->small);
  (void)d->ops->memory->release(d, &f->payload);
  if (f->opened && f->link.owner->transport->close) f->link.owner->transport->close(&f->link);
  free(f);
}

/* ---- slots ---- */

static bool proxied_sends(const hk_gpu_proxied *f) { return f->link.kind == HK_LINK_SEND; }
static uint32_t proxied_index_of(const hk_gpu_proxied *f) { return (uint32_t)f->link.done & f->link.mask; }
static uint64_t *proxied_word_of(const hk_gpu_proxied *f) {
  return (uint64_t *)f->words.host + proxied_index_of(f) * HK_GPU_WORD_STRIDE;
}
static char *proxied_data_of(const hk_gpu_proxied *f, uint32_t bytes) {
  const uint32_t small = f->link.small_bytes;
  if (f->link.small && bytes <= small) return f->link.small + (size_t)proxied_index_of(f) * small;
  return f->data + (size_t)proxied_index_of(f) * f->link.slot_bytes;
}
static uint32_t proxied_note_of(const hk_gpu_proxied *f) {
  /* relaxed: the sender stored its note before its word, which was acquired; the receiver's note orders nothing else */
  return __atomic_load_n((const uint32_t *)(const void *)(proxied_word_of(f) + 1), __ATOMIC_RELAXED);
}

/* Is a slot's data for the kernel in the GPU's memory? */
static bool proxied_is_on_gpu(const hk_gpu_proxied *f, uint32_t bytes) {
  return f->on_gpu && bytes > f->link.small_bytes;
}

/* Is it the word of the next slot, given in lines? */
static bool proxied_is_in_lines(const hk_gpu_proxied *f, uint64_t word) {
  return (uint32_t)(word >> 32) == ((uint32_t)(f->link.done + 1) ^ HK_GPU_IN_LINES);
}

/* Has the kernel posted the next slot?  `word` is that slot's. */
static bool proxied_is_posted(const hk_gpu_proxied *f, uint64_t word, uint32_t *bytes) {
  const uint32_t number = (uint32_t)(f->link.done + 1);
  if (!proxied_is_in_lines(f, word)) {
    *bytes = proxied_note_of(f);
    return (uint32_t)(word >> 32) == number;
  }
  /* relaxed: as the lines (lines.c). The length is valid if the number in the same 8 bytes is. */
  const uint64_t note = __atomic_load_n(proxied_word_of(f) + 1, __ATOMIC_RELAXED);
  *bytes = (uint32_t)note;
  return (uint32_t)(note >> 32) == number;
}

/* Takes a posted slot's lines; false if not all of them have arrived. */
static bool proxied_take_lines(hk_gpu_proxied *f, uint32_t tag, uint32_t bytes) {
  hk_link *l = &f->link;
  if (!hk_gpu_lines_take(proxied_lines_at(f, proxied_index_of(f)), hk_gpu_line_flag(l->done + 1, tag),
                         hk_link_send_buffer(l, bytes), bytes))
    return false;
  f->in_lines++;
  return true;
}

/* The largest size of the kernel's next slot, in bytes. */
static uint32_t proxied_room_of(const hk_gpu_proxied *f, bool in_lines) {
  const uint32_t capacity = f->data ? f->link.slot_bytes : f->link.small_bytes;
  if (!in_lines) return capacity;
  return !f->lines.host ? 0 : capacity < HK_GPU_LL_NET_MAX ? capacity : (uint32_t)HK_GPU_LL_NET_MAX;
}

/* The kernel had a credit for each slot that it filled: it waits for the head that the transport moves. */
static hk_status proxied_send_slots(const hk_gpu_proxy_env *e, hk_gpu_proxied *f, bool *moved) {
  hk_link *l = &f->link;
  for (uint32_t bytes;;) {
    /* acquire: pairs with the kernel's release (system scope) after the slot's data and its note. The transport reads
     * the data after this load: this CPU does, or a card that it asks. A GPU's writes to host memory arrive in order.
     * Its writes to its own memory are visible to the whole system, a card's reads included, before the word is. */
    uint64_t word = __atomic_load_n(proxied_word_of(f), __ATOMIC_ACQUIRE);
    const bool in_lines = proxied_is_in_lines(f, word);
    if (!proxied_is_posted(f, word, &bytes)) return HK_OK;
    if (bytes > proxied_room_of(f, in_lines))
      return HK_FAIL(HK_ERR_INTERNAL, "a kernel says that a slot to rank %u has %u bytes%s, %u is the most", l->peer,
                     bytes, in_lines ? " in lines" : "", proxied_room_of(f, in_lines));
    if (in_lines) {
      if (!proxied_take_lines(f, (uint32_t)word, bytes)) return HK_OK;
    } else if (proxied_is_on_gpu(f, bytes) && !l->gpu)
      HK_OR_RETURN(
          hk_device_copy(e->device, hk_link_send_buffer(l, bytes), proxied_data_of(f, bytes), bytes, e->queue));
    else if (bytes <= HK_SLOT_INLINE && !hk_link_on_gpu(l, bytes))
      memcpy(hk_link_send_buffer(l, bytes), proxied_data_of(f, bytes), bytes);
    hk_link_fill(l, bytes, (uint32_t)word, 0);
    *moved = true;
  }
  return HK_OK;
}

/* Tells the transport whether the kernel waits for the next slot.  If not, slots are received all the same, so that the
 * kernel finds them later. */
static void proxied_ask(hk_gpu_proxied *f) {
  hk_link_set_waiting(&f->link, proxied_note_of(f) == (uint32_t)(f->link.done + 1) ? HK_LINK_WAITS : HK_LINK_TAKES);
}

/* Writes the slot in lines as well: only the kernel knows whether it polls the word or the lines, and it may not wait
 * yet. If the slot does not fit, writes one line, so that a kernel whose call does not match finds that out. */
static void proxied_give_lines(hk_gpu_proxied *f, const hk_slot *s, const void *from) {
  const uint64_t number = f->link.done + 1;
  const uint32_t flag = hk_gpu_line_flag(number, s->signature);
  char *lines = proxied_lines_at(f, proxied_index_of(f));
  if (hk_gpu_lines_due(number, f->link.mask + 1))
    hk_gpu_lines_refresh(lines, hk_gpu_line_flag(number - 1, 0), HK_GPU_LL_NET_MAX);
  if (s->bytes > 0 && s->bytes <= HK_GPU_LL_NET_MAX)
    hk_gpu_lines_give(lines, flag, from, s->bytes);
  else
    hk_gpu_lines_refresh(lines, flag, 1);
}

static hk_status proxied_receive_slots(const hk_gpu_proxy_env *e, hk_gpu_proxied *f, bool *moved) {
  hk_link *l = &f->link;
  while (hk_link_can_recv(l)) {
    const hk_slot *s = hk_link_recv_slot(l);
    char *to = proxied_data_of(f, s->bytes);
    const void *from = hk_link_on_gpu(l, s->bytes) ? to : hk_link_recv_data(l);
    if (!from || s->bytes > l->slot_bytes)
      return HK_FAIL(
          HK_ERR_REMOTE,
          "rank %u sent a slot of %u bytes, %u is the most: do all ranks run the same version of this library?",
          l->peer, s->bytes, l->slot_bytes);
    if (proxied_is_on_gpu(f, s->bytes) && !l->gpu)
      HK_OR_RETURN(hk_device_copy(e->device, to, from, s->bytes, e->queue));
    else if (from != to)
      memcpy(to, from, s->bytes);
    if (f->lines.host) proxied_give_lines(f, s, from);
    uint64_t word = (uint64_t)(uint32_t)(l->done + 1) << 32 | s->signature;
    /* release: pairs with the kernel's acquire (system scope). The data, which this CPU or a card has written, is in
     * memory before.  For the GPU's own memory the transport has ensured that (ib_flush.c).  After its reads the kernel
     * itself gives the credit: it stores the head, which the transport reads. */
    __atomic_store_n(proxied_word_of(f), word, __ATOMIC_RELEASE);
    l->done++;
    *moved = true;
  }
  return HK_OK;
}

hk_status hk_gpu_proxied_before(const hk_gpu_proxy_env *e, hk_gpu_proxied *f, bool *moved) {
  if (proxied_sends(f)) return proxied_send_slots(e, f, moved);
  proxied_ask(f);
  return HK_OK;
}

hk_status hk_gpu_proxied_after(const hk_gpu_proxy_env *e, hk_gpu_proxied *f, bool *moved) {
  return proxied_sends(f) ? HK_OK : proxied_receive_slots(e, f, moved);
}

bool hk_gpu_proxied_needs_buffer(hk_gpu_proxied *f) {
  enum { PATIENCE = 1000 };
  /* relaxed: as in hk_net_place, which sets it again */
  bool needs_buffer = !f->data && !proxied_sends(f) &&
                      atomic_load_explicit(&f->link.needs_buffer, memory_order_relaxed) &&
                      proxied_note_of(f) == (uint32_t)(f->link.done + 1);
  f->buffer_pumps = needs_buffer ? f->buffer_pumps + 1 : 0;
  return f->buffer_pumps > PATIENCE;
}

/* ---- state ---- */

/* relaxed, for a report: proxied_send_slots and proxied_receive_slots acquire. */
static uint64_t proxied_peek(const hk_gpu_proxied *f) { return __atomic_load_n(proxied_word_of(f), __ATOMIC_RELAXED); }
static bool proxied_filled(const hk_gpu_proxied *f) {
  return (uint32_t)(proxied_peek(f) >> 32) == (uint32_t)(f->link.done + 1) || proxied_is_in_lines(f, proxied_peek(f));
}

bool hk_gpu_proxied_quiet(hk_gpu_proxied *f) {
  return !proxied_sends(f) || (!proxied_filled(f) && hk_link_drained(&f->link));
}

static hk_gpu_proxy_waits proxied_waits_of(const hk_gpu_proxied *f, const hk_gpu_proxy_link *l) {
  if (l->state == HK_LINK_CONNECTING) return HK_PROXY_WAITS_CONNECTION;
  if (proxied_sends(f)) {
    if (proxied_filled(f)) return HK_PROXY_WAITS_PROXY;
    return l->head == l->done ? HK_PROXY_WAITS_KERNEL : HK_PROXY_WAITS_PEER;
  }
  if (hk_link_can_recv(&f->link)) return HK_PROXY_WAITS_PROXY;
  if (l->note == (uint32_t)(l->done + 1)) return HK_PROXY_WAITS_PEER;
  return l->head == l->done ? HK_PROXY_WAITS_NOTHING : HK_PROXY_WAITS_KERNEL;
}

void hk_gpu_proxied_look(const hk_gpu_proxied *f, hk_gpu_proxy_link *out) {
  const hk_link *l = &f->link;
  *out = (hk_gpu_proxy_link){.peer = l->peer,
                             .sends = proxied_sends(f),
                             .channel = f->channel,
                             /* relaxed, both: for a report */
                             .state = atomic_load_explicit(&l->state, memory_order_relaxed),
                             .head = atomic_load_explicit(&l->heads->value, memory_order_relaxed),
                             .word = proxied_peek(f) & ~((uint64_t)HK_GPU_IN_LINES << 32),
                             .note = proxied_note_of(f),
                             .done = l->done,
                             .in_lines = f->in_lines};
  out->credits = l->mask + 1 - (uint32_t)(out->done - out->head);
  out->waits = (uint8_t)proxied_waits_of(f, out);
}
