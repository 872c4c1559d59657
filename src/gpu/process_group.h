/* SPDX-License-Identifier: Apache-2.0 */
/* Data that the ranks of a communicator on GPUs share within a process, and the credits of their links. */
#pragma once
#include "gpu.h"

struct hk_share_offer; /* transport/cuda/share.h */

/* One direction between two ranks on a channel: the receiver's memory. */
typedef struct hk_gpu_fifo {
  int32_t from, to;
  uint16_t channel;
  hk_memory data;
  struct hk_gpu_fifo *next;
} hk_gpu_fifo;

/* Shared by the ranks of a communicator that are threads of one process. */
typedef struct hk_gpu_process_group {
  uint64_t comm_id;
  int refs, nranks;
  pthread_mutex_t lock;        /* protects the FIFOs and `looked` */
  hk_device **devices;         /* [nranks]; NULL: the rank is in another process */
  hk_memory *credits;          /* [nranks]: memory of the credits of this process's ranks (hk_gpu_credit) */
  struct hk_gpu_slice *slices; /* [nranks]: where the credits lie in a pool */
  struct hk_shared *words;     /* [nranks]: words of this process's ranks for copy.c */
  struct hk_shared *signals;   /* [nranks]: words of this process's ranks for rma.c */
  hk_gpu_fifo **fifos;         /* [nranks], by sender */
  /* registered memory of ranks that have left: streams of others may still write to its mappings */
  struct hk_gpu_buffer *late;
  struct hk_multicast *multicast; /* transport/cuda/multicast.h */
  bool looked;                    /* the machine's topology was read, once for all ranks: topology.c */
  struct hk_cluster *machine;
  struct hk_paths *paths;
  struct hk_gpu *lost; /* ranks that ended before their work did; kept to be found in a core dump */
  struct hk_gpu_process_group *next;
} hk_gpu_process_group;

/* Joins or creates the process group and makes this rank's credits. */
hk_status hk_gpu_process_group_join(ncclComm_t c);
void hk_gpu_process_group_leave(hk_gpu_process_group *w);
void hk_gpu_lose(hk_gpu *g); /* sets g->lost, and keeps `g` until the process ends */
/* Makes this rank's credits anew after links->env->by_file has changed. */
hk_status hk_gpu_credits_again(ncclComm_t c);
/* Offers this rank's credits to all other processes. */
hk_status hk_gpu_credits_offer(ncclComm_t c, struct hk_share_offer *o);

/* A rank's credits, in its GPU's memory. For each link on which it sends: the head, which the receiver writes, and the
 * sender's counter. For proxied links: the counters of both directions.  After them: a pattern that the other ranks try
 * to read, then space into which this rank reads theirs. */
enum { HK_GPU_CREDIT_BYTES = 128, HK_GPU_SENT_AT = 64, HK_GPU_RECEIVED_AT = 96, HK_GPU_PROBE_BYTES = 4096 };
size_t hk_gpu_probe_at(int nranks);
size_t hk_gpu_credit_bytes(int nranks);
uint64_t hk_gpu_probe_word(uint64_t comm_id, int rank, unsigned i);
char *hk_gpu_credits_of(ncclComm_t c, int rank);
/* The credit of `rank`'s link to `peer`. */
char *hk_gpu_credit(ncclComm_t c, int rank, int peer, unsigned channel);
