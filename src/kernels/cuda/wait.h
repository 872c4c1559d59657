/* SPDX-License-Identifier: Apache-2.0 */
/* Waits of the executor (exec.cu) at a link, for a credit, a slot, and the many ranks of a link in a switch; and its
 * signals. */
#pragma once
#include "link.h"

HK_DEVICE uint64_t *word_of(const hk_gpu_link *k, uint64_t done) {
  return k->word + (done & (k->nslots - 1)) * HK_GPU_WORD_STRIDE;
}
HK_DEVICE uint32_t *note_of(const hk_gpu_link *k, uint64_t done) { return (uint32_t *)(word_of(k, done) + 1); }
/* litmus: slot, credit, line, switch_sums, switch_given_again */
HK_DEVICE void post_signal(const hk_gpu_link *k, uint64_t *at, uint64_t value) {
  if (k->multi & HK_GPU_MULTI_SIGNAL)
    hk_multi_store_signal(at, value);
  else
    hk_store_signal(at, value);
}
/* Both ends get the same result; over the network the ends are a kernel and its proxy. */
HK_DEVICE unsigned lines_for(const hk_gpu_link *k, uint32_t proto, uint64_t bytes) {
  if (proto == HK_PROTO_LL && k->lines && bytes > 0 && bytes <= lines_carry(k)) return LL_LINES;
  if (proto == HK_PROTO_LL128 && k->wide && bytes > 0 && bytes <= HK_GPU_LL128_CARRIES(k->wide_bytes))
    return WIDE_LINES;
  return PLAIN;
}

/* Waits for a credit. The reader's loads of the slot's last message must precede this rank's stores: the head is
 * acquired, and the reader stored it after a fence (litmus: credit). With `lines` neither is needed (litmus: line,
 * line_step): a reader accepts a line only with its slot's flag, and then stores the head. So it cannot have read the
 * line that is stored here later, with another flag. Relaxed heads of lines need not release slots of earlier launches:
 * a kernel's loads end with the kernel (litmus: slot_before_launch_bound). *seen counts acquired heads only, because
 * plain slots rely on it (litmus: credit_seen_relaxed). */
HK_DEVICE bool wait_credit(const hk_gpu_link *k, uint64_t done, bool lines, hk_gpu_state *state, uint64_t *seen) {
  uint64_t least = ~(uint64_t)0;
  uint32_t polls = 0;
  if (done < *seen + k->nslots) return true;
  for (uint32_t i = 0; i <= k->others; i++) {
    const uint64_t *at = k->head + i * HK_GPU_HEAD_STRIDE;
    uint64_t head = lines ? hk_load_signal(at) : hk_load_acquire(at);
    while (done >= head + k->nslots) {
      if (give_up(state, &polls)) return false;
      head = lines ? hk_load_signal(at) : hk_load_acquire(at);
    }
    if (head < least) least = head;
  }
  if (!lines) *seen = least;
  return true;
}

/* Waits for the credits of a link with several readers; in the first warp, a thread for each reader. A later
 * wait_credit does not wait then. Returns false, as below, in the thread that gives up. litmus: credit */
HK_DEVICE bool wait_credits(const hk_gpu_link *k, uint64_t done, hk_gpu_state *state) {
  uint32_t polls = 0;
  for (uint32_t i = hk_thread(); i <= k->others; i += HK_WARP)
    while (done >= hk_load_acquire(k->head + i * HK_GPU_HEAD_STRIDE) + k->nslots)
      if (give_up(state, &polls)) return false;
  return true;
}
/* Waits for the parts of the sum for all; in the first warp, a thread for each rank. litmus: slot, switch_parts */
HK_DEVICE bool wait_parts(const hk_gpu_link *k, uint64_t done, uint32_t tag, hk_gpu_state *state) {
  uint32_t polls = 0;
  for (uint32_t i = hk_thread(); i <= k->others; i += HK_WARP) {
    const uint64_t *at = word_of(k, done) + (uint64_t)i * k->nslots * HK_GPU_WORD_STRIDE;
    uint64_t word = hk_load_acquire(at);
    while ((uint32_t)(word >> 32) != (uint32_t)(done + 1)) {
      if (give_up(state, &polls)) return false;
      word = hk_load_acquire(at);
    }
    if ((uint32_t)word == tag) continue;
    report(state, i, (uint32_t)word, tag);
    return false;
  }
  return true;
}

/* XORed into a tag if the slot holds an address. */
enum { BY_REFERENCE = 0x5bd1e995 };

/* True if the peer has sent the slot in lines although this call expects a word. Checked sometimes during a wait.
 * litmus: none; for a report */
HK_DEVICE_CALL bool came_in_lines(const hk_gpu_link *k, uint64_t done, uint32_t *found) {
  const uint64_t slot = done & (k->nslots - 1);
  const uint32_t number = (uint32_t)(done + 1);
  hk_vec v;
  if (k->lines && !k->proxied) { /* a proxy writes a word in addition to lines */
    v = hk_load_line(lines_of(k, slot));
    *found = v.w[1];
    if (hk_gpu_line_flag(number, 0) == (v.w[1] & hk_gpu_line_flag(~0u, 0))) return true;
  }
  if (!k->wide) return false;
  v = hk_load_line(k->wide + slot * k->wide_bytes + 112);
  *found = v.w[3];
  return v.w[2] == number;
}

/* The place of a slot's data. */
HK_DEVICE char *data_of(const hk_gpu_link *k, uint64_t slot, uint64_t bytes) {
  if (k->small && bytes <= HK_LINK_SMALL) return k->small + slot * HK_LINK_SMALL;
  return k->data + slot * k->slot_bytes;
}

/* For the proxy: this kernel waits for the slot. */
HK_DEVICE void note_wait(const hk_gpu_link *k, uint64_t done) {
  hk_store_relaxed(note_of(k, done), (uint32_t)(done + 1)); /* relaxed: it orders nothing */
}

/* Waits for the slot. *data is the slot's place; for a reference it becomes the address of the data. `whole`: the tag
 * that a reference to the whole message has. litmus: slot, reference, proxied_receive */
HK_DEVICE bool wait_slot(const hk_gpu_link *k, uint64_t done, uint32_t tag, uint32_t whole, hk_gpu_state *state,
                         char **data) {
  uint32_t polls = 0, found;
  const uint64_t *at = word_of(k, done);
  uint64_t word = hk_load_acquire(at);
  if (k->proxied && (uint32_t)(word >> 32) != (uint32_t)(done + 1)) note_wait(k, done);
  while ((uint32_t)(word >> 32) != (uint32_t)(done + 1)) {
    if (give_up(state, &polls)) return false;
    if (polls % POLLS_BETWEEN_LOOKS == 0 && came_in_lines(k, done, &found)) {
      report(state, k->peer, found, tag);
      return false;
    }
    word = hk_load_acquire(at);
  }
  if ((uint32_t)word == tag) return true;
  if ((uint32_t)word == (whole ^ BY_REFERENCE)) {
    hk_vec v = hk_load(*data);
    *data = (char *)(uintptr_t)(v.w[0] | (uint64_t)v.w[1] << 32);
    return true;
  }
  report(state, k->peer, (uint32_t)word, tag);
  return false;
}

/* After the wait for the credit, before the word. */
HK_DEVICE void put_reference(const hk_gpu_link *k, uint64_t done, uint64_t at) {
  hk_vec v = {{(uint32_t)at, (uint32_t)(at >> 32), 0, 0}};
  hk_store(k->data + (done & (k->nslots - 1)) * k->slot_bytes, v);
}
