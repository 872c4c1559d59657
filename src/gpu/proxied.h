/* SPDX-License-Identifier: Apache-2.0 */
/* One end of a link whose slots the proxy moves (proxy.h): between the kernel's memory and the transport's. */
#ifndef HK_GPU_PROXIED_H
#define HK_GPU_PROXIED_H
#include "../kernels/cuda/work.h"
#include "../transport/transport.h"
#include "proxy.h"

typedef struct hk_gpu_proxied {
  _Alignas(HK_CACHE_LINE) hk_link link; /* the transport's end; the proxy is its lane */
  hk_memory fifo;                       /* the FIFO's host memory, pinned: headers and head counter... */
  hk_memory small;                      /* ...small payloads, if large ones come later (hk_gpu_proxied_grow)... */
  hk_memory payload;                    /* ...and payloads, if they are there */
  hk_memory lines;                      /* LL lines of small slots, pinned; base NULL: the GPU has the payloads */
  bool opened;                          /* by the transport */
  bool rests;                           /* nothing but the kernels uses the payloads */
  hk_memory words;                      /* words and notes */
  hk_memory own;                        /* the kernel's data, if the transport receives into other memory */
  char *data;                           /* of the kernel's slots; NULL: of small ones only */
  /* `data` is in the GPU's memory; if the transport has taken link.gpu back, slots are copied from and to it */
  bool on_gpu;
  uint16_t channel;
  uint16_t buffer_pumps; /* pumps since it has begun to starve */
  uint64_t in_lines;     /* slots that the kernel has given in lines */
  struct hk_gpu_proxied *next;
} hk_gpu_proxied;

/* Gets its pinned memory; then, under the proxy's lock, asks the transport whether it takes the GPU's; reserves that
 * without the lock, because it may wait for kernels; lets the transport open the end, under the lock; and gets what
 * else that means, and fills data, word and head of `out`. */
hk_status hk_gpu_proxied_new(const hk_gpu_proxy_env *e, hk_transport_state *via, const hk_link_key *key,
                             hk_gpu_proxied **end);
hk_status hk_gpu_proxied_prepare(hk_gpu_proxied *end, hk_transport_state *via, const hk_link_key *key);
hk_status hk_gpu_proxied_reserve(hk_gpu_proxied *end);
hk_status hk_gpu_proxied_open(hk_gpu_proxied *end, hk_transport_state *via, const hk_link_key *key);
hk_status hk_gpu_proxied_bind(const hk_gpu_proxy_env *e, hk_gpu_proxied *end, hk_gpu_link *out);
/* Under the proxy's lock: gives the end memory for large slots, `on_gpu` of the transport or `host`, which it takes
 * over. */
hk_status hk_gpu_proxied_grow(hk_gpu_proxied *end, char *on_gpu, const hk_memory *host);
void hk_gpu_proxied_free(const hk_gpu_proxy_env *e, hk_gpu_proxied *end);
/* Its lines hold nothing that a kernel or the proxy may wait for; whatever their memory held. No kernel uses them. */
void hk_gpu_proxied_clear_lines(hk_gpu_proxied *end);
/* Before the transport's progress: takes what the kernel has sent, or sees whether it waits. */
hk_status hk_gpu_proxied_before(const hk_gpu_proxy_env *e, hk_gpu_proxied *end, bool *moved);
/* After it: hands over what has arrived. */
hk_status hk_gpu_proxied_after(const hk_gpu_proxy_env *e, hk_gpu_proxied *end, bool *moved);
/* Has the transport taken all that the kernel has sent? */
bool hk_gpu_proxied_quiet(hk_gpu_proxied *end);
/* A large slot is to come while the kernel waits for one, and the end has no memory for it: it is another one than the
 * kernel's, which must see that.  Once in a pump; true after some, because what is under way may still be before it. */
bool hk_gpu_proxied_needs_buffer(hk_gpu_proxied *end);
size_t hk_gpu_proxied_bytes(const hk_transport_env *e); /* of the payloads */
/* The memories of the payloads and lines: pinned ones, and the GPU's.  Each may be none; NULL: there are no more. */
hk_memory *hk_gpu_proxied_payload(hk_gpu_proxied *end, int i);
void hk_gpu_proxied_look(const hk_gpu_proxied *end, hk_gpu_proxy_link *out);
#endif
