/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Proxied links: links between GPUs whose ranks share no memory.  The proxy, one thread of a communicator, moves their
 * slots by the transport of the host's ranks (transport/transport.h).  This is the one place that describes the
 * handshake.
 *
 * Memory.  Each end has the transport's FIFO (transport/link.h).  The kernels read and write the slots' data there, and
 * its head counter is their credit.  The data is in the GPU's memory if a network card reaches that (GPUDirect RDMA;
 * the transport decides it for each end alone), else in pinned host memory, as all the rest.  If a card refuses more of
 * the GPU's memory when the connection is made, the kernels know that address already: then the proxy copies each slot.
 *
 * Words and notes.  Each end also has 8 bytes for each slot, its word (kernels/cuda/work.h: the slot's number in the
 * upper half, the call's tag in the lower half), and after it 4 bytes, the kernel's note, both in pinned host memory.
 * They are the proxy's only input from the kernel, so it knows nothing about programs, calls or launches, and replays
 * of captured launches need no call of the host.
 *
 * For slot k, in this order:
 * 1. The sender's kernel waits until head >= k - slots, writes the slot's data, its length as the note, then the word
 *    (release).
 * 2. The sender's proxy finds word k (acquire), fills slot k of the transport's FIFO, and lets the transport make
 *    progress.
 * 3. The transport moves the slot.  At the sender it advances the head when the slot's memory is free again.
 * 4. The receiver's proxy finds slot k in its FIFO (acquire) and stores word k (release).
 * 5. The receiver's kernel finds word k (acquire), reads the data and stores head = k (release), which the transport
 *    reads.
 *
 * Lines.  With LL a small slot goes between kernel and proxy in lines (kernels/cuda/work.h), in pinned memory, so that
 * neither kernel needs a fence, a second look at memory after the word, or an acquire:
 * 1. The sender's kernel stores the lines, and then at the place of word and note, one more line: the tag, the length,
 *    and as its flags the slot's number, one of them XORed with HK_GPU_IN_LINES.
 * 2. The sender's proxy finds that line, and takes the data out of the lines into the transport's slot when all of them
 *    have the slot's flag.  They were stored before, but may arrive later.
 * 4. The receiver's proxy writes slot k, if it is small, as lines, too, before its word.
 * 5. The receiver's kernel polls the lines, having left k as its note before, and stores head = k, with no fence.
 * The network carries slots, not lines: transports do not know lines, and flags take no bandwidth. The CPU copies small
 * slots anyway.  An end does not know whether the other end has lines. An end has none if all its payloads are in the
 * GPU's memory.  Before flags repeat, the sender's kernel and the receiver's proxy each write all lines anew.
 *
 * A receiver's kernel that finds no word k leaves k as its note: it waits.  Before that, arriving slots are received
 * ahead, and a peer that has left is no error.  After that, it is an error.
 *
 * Large and small slots.  A link begins with pinned host memory for slots of at most HK_LINK_SMALL bytes.  The
 * first call with larger slots allocates memory for them (hk_gpu_proxy_grow).  A slot's length determines its place, so
 * both kinds may be under way together.  Each end grows by itself; a large slot waits until its receiver's end has
 * grown.
 *
 * Credits do not pass through the proxy: the kernel reads and writes the very heads that the transport moves.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../device/device.h"

struct hk_gpu_link; /* kernels/cuda/work.h */
struct hk_link_key; /* transport/transport.h */
struct hk_transport_env;
struct hk_transport_state;
struct hk_wait_env; /* base/wait.h */

/* What the communicator gives to its proxy; hk_gpu_proxy_new copies it. */
typedef struct hk_gpu_proxy_env {
  const struct hk_transport_env *env;
  hk_device *device;
  hk_queue queue;    /* stream for copies between the GPU's memory and the host's */
  bool sends_direct; /* network cards may read the GPU's memory */
  const struct hk_wait_env *wait;
  hk_status (*over)(void *arg, bool *done); /* *done: all launches have ended */
  hk_status (*check)(void *arg); /* the watchdog, about every 100 ms without a slot while launches run; NULL: none */
  void (*failed)(void *arg, hk_status rc); /* the proxy gives up: ends the kernels, and reports it to the other ranks */
  /* pinned: zeroed pinned memory for links, which the proxy releases. unpinned: takes back the payloads from the last
   * call of `pinned`, if they are not used. */
  hk_status (*pinned)(void *arg, bool payload, size_t bytes, hk_memory *out);
  void (*unpinned)(void *arg, hk_memory *payload);
  void *arg;
} hk_gpu_proxy_env;

/* Other work of the proxy's thread, done without the lock of the links (rma_proxy.c). */
typedef struct hk_gpu_proxy_work {
  hk_status (*step)(void *arg, bool *moved);
  hk_status (*check)(void *arg); /* about every 100 ms without progress */
  bool (*quiet)(void *arg);      /* when the thread is to end: nothing is left to do */
  void *arg;
} hk_gpu_proxy_work;

/* What a link waits for. */
typedef enum hk_gpu_proxy_waits {
  HK_PROXY_WAITS_NOTHING,    /* receiver: no kernel waits for a slot */
  HK_PROXY_WAITS_CONNECTION, /* the connection is being made */
  HK_PROXY_WAITS_KERNEL,     /* sender: for the kernel's next slot; receiver: for the kernel to give slots back */
  HK_PROXY_WAITS_PEER,       /* sender: for the peer to give slots back; receiver: for the peer's next slot */
  HK_PROXY_WAITS_PROXY       /* the proxy has not seen a posted word or an arrived slot yet */
} hk_gpu_proxy_waits;

/* The state of one link at one moment. */
typedef struct hk_gpu_proxy_link {
  int peer;
  bool sends;
  uint16_t channel;
  uint8_t state; /* hk_link_state */
  uint8_t waits; /* hk_gpu_proxy_waits */
  /* current word at the next slot's place; the upper half is the number of the slot for which it was stored */
  uint64_t word;
  uint32_t note;       /* the kernel's note at the same place */
  uint64_t done, head; /* done: slots that the proxy has moved; head: slots that the receiver has given back */
  uint64_t in_lines;   /* sender: slots in `done` that the kernel posted in lines */
  uint32_t credits;    /* slots that may be filled now */
} hk_gpu_proxy_link;

typedef struct hk_gpu_proxy hk_gpu_proxy;
hk_status hk_gpu_proxy_new(const hk_gpu_proxy_env *e, hk_gpu_proxy **out);
/* Makes one end of a link over the transport `via`; the first end starts the thread. */
hk_status hk_gpu_proxy_add(hk_gpu_proxy *p, struct hk_transport_state *via, const struct hk_link_key *key,
                           struct hk_gpu_link *out);
/* Gives the thread other work until its end, and starts it if necessary. The proxy does not copy `work`. */
hk_status hk_gpu_proxy_serve(hk_gpu_proxy *p, const hk_gpu_proxy_work *work);
/* Allocates memory for large slots for an end whose data is NULL, and stores its address in `out`: before the first
 * launch that needs it.  Earlier and captured launches still work, because small slots stay where they are. */
hk_status hk_gpu_proxy_grow(hk_gpu_proxy *p, const struct hk_link_key *key, struct hk_gpu_link *out);
/* After each launch.  NULL: nothing to do. */
void hk_gpu_proxy_wake(hk_gpu_proxy *p, bool captured);
/* Waits until the peers have given back all slots that the kernels have sent. */
hk_status hk_gpu_proxy_settle(hk_gpu_proxy *p);
/* Stops until hk_gpu_proxy_go_on.  All ranks have settled: their proxies no longer need this proxy's slots. */
void hk_gpu_proxy_pause(hk_gpu_proxy *p);
/* All ranks have paused: lets the links rest, and wakes them (transport.h). */
hk_status hk_gpu_proxy_rest(hk_gpu_proxy *p, bool rests);
void hk_gpu_proxy_go_on(hk_gpu_proxy *p);
/* Do all links rest? */
bool hk_gpu_proxy_rests(hk_gpu_proxy *p);
/* Visits the memory of each link's payloads; `resting`: only of links that rest. */
void hk_gpu_proxy_payloads(hk_gpu_proxy *p, bool resting, void (*visit)(void *arg, hk_memory *m), void *arg);
/* The list of links, to which only hk_gpu_proxy_add adds.  NULL: none. */
struct hk_gpu_proxied *hk_gpu_proxy_links(hk_gpu_proxy *p);
/* Reports wait for the proxy for one second at most, because a network plugin may keep it in a call. */

/* Stores the states of up to `capacity` links and returns the number of links; 0 if the proxy does not answer.
 * From any thread. */
int hk_gpu_proxy_look(hk_gpu_proxy *p, hk_gpu_proxy_link *out, int capacity);
/* "receives from rank 2, channel 0: ready, 5 slots done, head 5, 8 credits, word 4:9f03, note 6, waits for the
 * peer". */
void hk_gpu_proxy_describe(const hk_gpu_proxy_link *l, char *text, size_t bytes);
/* Why launches do not end. `peers`: the ranks for whose data kernels wait, "2, 5". `links`: describes each link that
 * waits for a peer or a connection, after "; ". Either is empty if there is none. If the proxy does not answer, `links`
 * names the transport whose call it is in, and since when. From any thread. NULL: none. */
void hk_gpu_proxy_report(hk_gpu_proxy *p, char *peers, size_t peers_bytes, char *links, size_t links_bytes);
/* True after a failure if the thread has ended, or never began. A network plugin may keep it in a call. */
bool hk_gpu_proxy_has_left(hk_gpu_proxy *p);
/* Sends the remaining slots and ends the thread.  Then closes the links and frees the proxy, unless kernels may still
 * use their memory (`lost`). */
void hk_gpu_proxy_end(hk_gpu_proxy *p, bool lost);
