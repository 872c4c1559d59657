/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The runtime's side of windows that users' kernels access by loads and stores (docs/device-api.md).
 *
 * The ranks of an LSA team access each other's GPU memory. Each rank has an address range with one part for every rank
 * of the team. All parts have the same length, the stride. A window lies at the same offset in every part.
 */
#pragma once
#include "../core/comm.h"

/* A window as kernels read it, in GPU memory: an ncclWindow_t is its address. Since NCCL 2.28 fields were only added at
 * the end, so one layout serves all versions. */
typedef struct hk_device_window {
  void *host;       /* for the library */
  char *flat;       /* address of rank 0's copy of the window */
  int32_t lsa_rank; /* this rank in the team */
  int32_t world_rank;
  uint32_t stride_4g;    /* from rank to rank, in 4 GiB */
  uint32_t multicast_4k; /* offset in a team's multicast memory, in 4 KiB */
  uint32_t gin_4k, flags;
  void *gin[4], *gin_segments;
  int32_t segments, cft_rank;
  uint32_t cft_endpoint; /* UINT32_MAX: none */
} hk_device_window;
_Static_assert(offsetof(hk_device_window, stride_4g) == 24 && offsetof(hk_device_window, gin) == 40 &&
                   offsetof(hk_device_window, cft_endpoint) == 88 && sizeof(hk_device_window) == 96,
               "the layout of NVIDIA's device code");

/* A symmetric window. The backend's own struct begins with it. */
typedef struct hk_symmetric {
  ncclWindow_t handle;    /* of the copy in GPU memory */
  hk_device_window image; /* that copy */
} hk_symmetric;

/* hk_backend.windows: NULL if there are no such windows. */
typedef struct hk_window_ops {
  /* By all ranks together.  *out stays NULL on all of them, with the reason in the log, if the memory of some rank
   * cannot be mapped. A failure ends the communicator. */
  hk_status (*add)(ncclComm_t c, void *base, size_t bytes, int flags, hk_symmetric **out);
  /* The same for zeroed memory of the library, which exists as long as the window. */
  hk_status (*add_memory)(ncclComm_t c, size_t bytes, hk_symmetric **out);
  void (*drop)(ncclComm_t c, hk_symmetric *w); /* by each rank alone; no kernel uses it any more */
  /* By all ranks together, each with its own team of at least one rank. *out: the address of the team's multicast
   * memory; stays NULL as above. */
  hk_status (*multicast)(ncclComm_t c, ncclTeam_t team, char **out);
  /* *out: a table of all of this rank's windows, in GPU memory. */
  hk_status (*table)(ncclComm_t c, void **out);
} hk_window_ops;

/* The address at which kernels of this rank access the window of the team's rank `lsa_rank`. */
static inline char *hk_symmetric_at(const hk_symmetric *w, int lsa_rank) {
  return w->image.flat + ((uint64_t)(uint32_t)lsa_rank * w->image.stride_4g << 32);
}
static inline ncclTeam_t hk_lsa_team(const struct ncclComm *c) {
  return (ncclTeam_t){c->lsa.ranks, c->rank % c->lsa.ranks, 1};
}
/* The number of `rank` in this rank's LSA team; -1: it is not in the team. */
static inline int hk_lsa_rank(const struct ncclComm *c, int rank) {
  return rank / c->lsa.ranks == c->rank / c->lsa.ranks ? rank % c->lsa.ranks : -1;
}

/* The resource window of a device communicator, until it is destroyed. */
struct hk_device_comm {
  hk_symmetric *window;
  struct hk_device_comm *next;
};
/* device_comm.c: bytes of the newest layout. */
size_t hk_device_comm_bytes(void);
/* registration.c, from any thread: this rank's window of that number, from 1, among the communicator's; NULL: it has
 * none, or only memory that other ranks do not map. */
hk_symmetric *hk_symmetric_window(ncclComm_t c, uint64_t number);
