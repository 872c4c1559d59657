/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of the host device: what ncclMemAlloc returns if there is no GPU. It is ordinary memory that other processes
 * can map, so that transports may pass references to it instead of copies. */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

/* Page-aligned (2 MiB from 2 MiB on) and zeroed. */
hk_status hk_host_alloc(void **out, size_t bytes);
/* HK_ERR_ARGUMENT if hk_host_alloc did not return `p`. NULL is allowed.  Peers that still have the memory mapped see
 * zeros. */
hk_status hk_host_free(void *p);

/* A stretch of address space that lies wholly inside one region or wholly outside of all. */
typedef struct hk_host_span {
  uintptr_t begin, end;
  uint64_t region; /* its id, never used again after it is freed; 0: no region here */
} hk_host_span;

/* Changes whenever a region is added or removed: a span found before may be wrong then. */
extern _Atomic uint64_t hk_host_generation;

/* The span that holds `p`. */
hk_host_span hk_host_find(const void *p);
/* The region's address and size in this process. Returns false if it does not exist any more. */
bool hk_host_locate(uint64_t region, char **base, size_t *bytes);
/* A duplicate of the region's file descriptor, which the caller closes; -1 if the region does not exist any more. */
int hk_host_export(uint64_t region, size_t *bytes);

/* Makes a file available to other processes, which ask for it as for a region's file. The table takes over `fd`.
 * `once`: it is sent to the first process that asks, and closed here. */
hk_status hk_host_lend(int fd, size_t bytes, bool once, uint64_t *id);
/* Ends that and closes the file. Does nothing if `id` is 0 or the file has been sent. */
void hk_host_take_back(uint64_t id);

/* Prefers a NUMA node for pages that have not been touched yet; -1: none. If the kernel or a container refuses, each
 * page is allocated on the node that touches it first. */
void hk_host_place(void *base, size_t bytes, int node);
/* Private memory in whole pages, placed as by hk_host_place; forked children do not inherit it. NULL: see errno.
 * munmap frees it. */
void *hk_host_map(size_t bytes, int node);

/* An unlinked file in memory, `bytes` long, sparse, close-on-exec; -1: see errno.  It is not in /dev/shm. */
int hk_host_memfd(const char *name, size_t bytes);
