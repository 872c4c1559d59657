/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a link between GPUs over the network: its memory, and slots from the kernel to the transport and back. */
#include "net.h"
#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static size_t pages(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }
static size_t words_bytes(const hk_transport_env *e) {
  return (size_t)e->nslots * HK_GPU_WORD_STRIDE * sizeof(uint64_t);
}

/* Slots' headers, head counter and, where it is the host's, payload lie in one mapping, which begins with the headers. */
static hk_status pin_fifo(ncclComm_t c, hk_gpu_far *f) {
  hk_link *l = &f->link;
  hk_device *d = hk_gpu_of(c)->device;
  char *begin = (char *)l->slots;
  char *end = l->gpu ? (char *)(l->heads + 1) : l->payload + (size_t)(l->mask + 1) * l->slot_bytes;
  return d->ops->pin(d, begin, pages((size_t)(end - begin)), &f->fifo);
}

static void *on_device(const hk_gpu_far *f, const void *at) {
  return (char *)f->fifo.base + ((const char *)at - (const char *)f->fifo.host);
}

hk_status hk_gpu_far_new(ncclComm_t c, const hk_link_key *key, hk_gpu_link *out, hk_gpu_far **far) {
  hk_status rc = HK_OK;
  const hk_transport_env *e = &c->wiring.env;
  hk_device *d = hk_gpu_of(c)->device;
  hk_transport_state *s = c->wiring.states[c->wiring.via[key->peer]];
  hk_gpu_far *f = aligned_alloc(HK_CACHE_LINE, sizeof *f);
  if (!f) return HK_FAIL_ERRNO("no memory for a link to rank %u", key->peer);
  memset(f, 0, sizeof *f);
  f->link.peer = key->peer;
  f->link.kind = key->kind;
  f->link.owner = s;
  f->gpu = hk_gpu_of(c);
  if (key->kind == HK_LINK_RECV || hk_gpu_of(c)->sends_direct) f->link.gpu = d;
  rc = s->transport->open(s, key, &f->link);
  if (rc != HK_OK) {
    free(f);
    return rc;
  }
  HK_TRY(pin_fifo(c, f), undo);
  size_t own = f->link.delivers_ref ? (size_t)e->nslots * e->slot_bytes : 0, words = pages(words_bytes(e));
  HK_TRY(d->ops->alloc_host(d, words + own, &f->words), undo);
  f->data = own ? (char *)f->words.host + words : f->link.payload;
  f->on_gpu = f->link.gpu != NULL;
  out->word = f->words.base;
  out->data = own ? (char *)f->words.base + words : f->link.gpu ? f->link.payload : on_device(f, f->link.payload);
  out->head = on_device(f, &f->link.heads->value);
  *far = f;
  return HK_OK;
undo:
  hk_gpu_far_free(c, f);
  return rc;
}

/* Failures are logged, and there is nothing else to do about them. */
void hk_gpu_far_free(ncclComm_t c, hk_gpu_far *f) {
  hk_device *d = hk_gpu_of(c)->device;
  (void)d->ops->release(d, &f->words);
  (void)d->ops->release(d, &f->fifo);
  f->link.owner->transport->close(&f->link);
  free(f);
}

/* ---- slots ---- */

static bool sends(const hk_gpu_far *f) { return f->link.kind == HK_LINK_SEND; }
static uint32_t index_of(const hk_gpu_far *f) { return (uint32_t)f->link.done & f->link.mask; }
static uint64_t *word_of(const hk_gpu_far *f) { return (uint64_t *)f->words.host + index_of(f) * HK_GPU_WORD_STRIDE; }
static char *data_of(const hk_gpu_far *f) { return f->data + (size_t)index_of(f) * f->link.slot_bytes; }
static uint32_t note_of(const hk_gpu_far *f) {
  /* relaxed: the sender's note stands behind its word, which was acquired; the receiver's stands alone */
  return __atomic_load_n((const uint32_t *)(const void *)(word_of(f) + 1), __ATOMIC_RELAXED);
}

/* Between the kernel's memory and the host's. */
static hk_status copy(const hk_gpu_far *f, void *to, const void *from, uint32_t bytes) {
  hk_status rc;
  hk_device *d = f->gpu->device;
  HK_TRY(d->ops->copy(d, to, from, bytes, f->gpu->queue), out);
  rc = d->ops->wait(d, f->gpu->queue);
out:
  return rc;
}

/* The kernel has a credit for what it has filled: it waits for the very head that the transport moves. */
static hk_status send_slots(hk_gpu_far *f, bool *moved) {
  hk_status rc = HK_OK;
  hk_link *l = &f->link;
  for (;;) {
    /* acquire: pairs with the kernel's release, system scope, behind the slot's data and its note; the transport, be it
     * this CPU or a card that is told to read the memory, comes behind it.  A GPU's writes to host memory arrive in order;
     * what it has written to its own memory is visible to all of the system before the word is, to a card's reads too. */
    uint64_t word = __atomic_load_n(word_of(f), __ATOMIC_ACQUIRE);
    if ((uint32_t)(word >> 32) != (uint32_t)(l->done + 1)) return HK_OK;
    uint32_t bytes = note_of(f);
    if (bytes > l->slot_bytes)
      return HK_FAIL(HK_ERR_INTERNAL, "a kernel says that a slot to rank %u has %u bytes, %u is the most", l->peer,
                     bytes, l->slot_bytes);
    if (f->on_gpu && !l->gpu)
      HK_TRY(copy(f, hk_link_send_buffer(l, bytes), data_of(f), bytes), out);
    else if (bytes <= HK_SLOT_INLINE && !l->gpu)
      memcpy(hk_link_send_buffer(l, bytes), data_of(f), bytes);
    hk_link_fill(l, bytes, (uint32_t)word, 0);
    *moved = true;
  }
out:
  return rc;
}

/* Tells the transport whether the kernel stands still for the next slot.  If not, what comes is taken all the same, so that
 * the kernel finds it when it gets there. */
static void ask(hk_gpu_far *f) {
  f->link.waiting = note_of(f) == (uint32_t)(f->link.done + 1) ? HK_LINK_WAITS : HK_LINK_TAKES;
}

static hk_status receive_slots(hk_gpu_far *f, bool *moved) {
  hk_status rc = HK_OK;
  hk_link *l = &f->link;
  while (hk_link_can_recv(l)) {
    const hk_slot *s = hk_link_recv_slot(l);
    const void *from = l->gpu ? data_of(f) : hk_link_recv_data(l);
    if (!from || s->bytes > l->slot_bytes)
      return HK_FAIL(
          HK_ERR_REMOTE,
          "rank %u sent a slot of %u bytes, %u is the most: do all ranks run the same version of this library?",
          l->peer, s->bytes, l->slot_bytes);
    if (f->on_gpu && !l->gpu)
      HK_TRY(copy(f, data_of(f), from, s->bytes), out);
    else if (from != data_of(f))
      memcpy(data_of(f), from, s->bytes);
    uint64_t word = (uint64_t)(uint32_t)(l->done + 1) << 32 | s->signature;
    /* release: pairs with the kernel's acquire, system scope; the data, which this CPU or a card wrote, is in memory
     * before.  Where that is the GPU's own, the transport has made sure of it (ib_gpu.c).  The kernel gives the credit
     * itself, behind its reads: it stores the head that the transport looks at. */
    __atomic_store_n(word_of(f), word, __ATOMIC_RELEASE);
    l->done++;
    *moved = true;
  }
out:
  return rc;
}

hk_status hk_gpu_far_before(hk_gpu_far *f, bool *moved) {
  if (sends(f)) return send_slots(f, moved);
  ask(f);
  return HK_OK;
}

hk_status hk_gpu_far_after(hk_gpu_far *f, bool *moved) { return sends(f) ? HK_OK : receive_slots(f, moved); }

bool hk_gpu_far_quiet(hk_gpu_far *f) {
  if (!sends(f)) return true;
  uint64_t word = __atomic_load_n(word_of(f), __ATOMIC_RELAXED); /* only a look: send_slots acquires */
  return (uint32_t)(word >> 32) != (uint32_t)(f->link.done + 1) && hk_link_drained(&f->link);
}
