/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a proxied link (proxy.h): the proxy moves its slots between the kernel's memory and the transport's. */
#pragma once
#include "../kernels/cuda/work.h"
#include "../transport/transport.h"
#include "proxy.h"

typedef struct hk_gpu_proxied {
  _Alignas(HK_CACHE_LINE) hk_link link; /* the transport's end; the proxy is its lane */
  hk_memory fifo;                       /* pinned part of the FIFO: headers and head counter */
  hk_memory small;   /* pinned small payloads, if the end gets large ones later (hk_gpu_proxied_grow) */
  hk_memory payload; /* pinned payloads, if they are in host memory */
  hk_memory lines;   /* LL lines of small slots, pinned; base NULL: the GPU has the payloads */
  bool opened;       /* the transport has opened the end */
  bool rests;        /* only the kernels use the payloads now */
  hk_memory words;   /* words and notes */
  hk_memory own;     /* the kernel's slots, if the transport receives into other memory */
  char *data;        /* the kernel's slots; NULL: it has small ones only */
  /* `data` is in the GPU's memory. If the transport has taken link.gpu back, the proxy copies the slots. */
  bool on_gpu;
  uint16_t channel;
  uint16_t buffer_pumps; /* pumps since it began to need a buffer (hk_gpu_proxied_needs_buffer) */
  uint64_t in_lines;     /* slots that the kernel has posted in lines */
  struct hk_gpu_proxied *next;
} hk_gpu_proxied;

/* The five steps that make an end, in this order. `new` gets its pinned memory. `prepare`, under the proxy's lock, asks
 * the transport whether it accepts the GPU's memory. `reserve` allocates that memory, without the lock, because it may
 * wait for kernels. `open`, under the lock, lets the transport open the end. `bind` pins the transport's memory and
 * fills `out`. */
hk_status hk_gpu_proxied_new(const hk_gpu_proxy_env *e, hk_transport_state *via, const hk_link_key *key,
                             hk_gpu_proxied **end);
hk_status hk_gpu_proxied_prepare(hk_gpu_proxied *end, hk_transport_state *via, const hk_link_key *key);
hk_status hk_gpu_proxied_reserve(hk_gpu_proxied *end);
hk_status hk_gpu_proxied_open(hk_gpu_proxied *end, hk_transport_state *via, const hk_link_key *key);
hk_status hk_gpu_proxied_bind(const hk_gpu_proxy_env *e, hk_gpu_proxied *end, hk_gpu_link *out);
/* Under the proxy's lock: gives the end memory for large slots: `on_gpu`, from the transport, or `host`, which the end
 * then owns. */
hk_status hk_gpu_proxied_grow(hk_gpu_proxied *end, char *on_gpu, const hk_memory *host);
void hk_gpu_proxied_free(const hk_gpu_proxy_env *e, hk_gpu_proxied *end);
/* Resets the lines, whatever their memory holds, so that no old flag matches. No kernel may use them now. */
void hk_gpu_proxied_clear_lines(hk_gpu_proxied *end);
/* Before the transport's progress. Sender: takes the slots that the kernel has posted. Receiver: tells the transport
 * whether the kernel waits. */
hk_status hk_gpu_proxied_before(const hk_gpu_proxy_env *e, hk_gpu_proxied *end, bool *moved);
/* After the transport's progress: hands arrived slots to the kernel. */
hk_status hk_gpu_proxied_after(const hk_gpu_proxy_env *e, hk_gpu_proxied *end, bool *moved);
/* True if the transport has taken all slots that the kernel has sent. */
bool hk_gpu_proxied_quiet(hk_gpu_proxied *end);
/* True if a large slot arrives for which the end has no memory, while the kernel waits for a slot. The peer's call then
 * differs from this rank's, and the kernel must receive the slot to find that out.  Called once in a pump; it returns
 * true only after several pumps, because earlier slots may still be under way. */
bool hk_gpu_proxied_needs_buffer(hk_gpu_proxied *end);
size_t hk_gpu_proxied_bytes(const hk_transport_env *e); /* bytes of an end's payloads */
/* The i-th memory of payloads and lines: pinned ones, then the GPU's.  Each may be empty; NULL: no more. */
hk_memory *hk_gpu_proxied_payload(hk_gpu_proxied *end, int i);
void hk_gpu_proxied_look(const hk_gpu_proxied *end, hk_gpu_proxy_link *out);
