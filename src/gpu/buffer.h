/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Zero copy between GPUs and between processes. The first call that uses registered memory opens it for the ranks that
 * can reach this rank's memory.  Kernels read tables with the offset that each rank adds to an address.
 */
#pragma once
#include <nccl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../device/device.h"

struct hk_call;
struct hk_gpu_process_group;

/* Registered memory, and how the other ranks' GPUs reach it. */
typedef struct hk_gpu_buffer {
  uintptr_t begin, end;
  uint64_t key, id; /* key: this rank's number for it; id: the allocation's when it was shared, 0: unknown */
  bool made, unusable;
  bool symmetric;    /* a window: all ranks register windows in the same order, and its key counts them */
  bool shareable;    /* virtual memory: it lives as long as any process has it open */
  uint64_t *theirs;  /* [nranks] address, for this rank, of each other rank's window with this key; 0: not known yet */
  int64_t *seen;     /* [nranks] what each rank adds to an address, as in a kernel's table */
  hk_memory *opened; /* [nranks]: mappings that this process has opened for its ranks on other GPUs */
  int64_t *table;    /* copy of `seen` in device memory; NULL: none yet */
  struct hk_gpu_buffer *next;
} hk_gpu_buffer;

/* Memory that a rank of another process has registered, opened for this one. */
typedef struct hk_gpu_import {
  int from;
  uint64_t key;
  hk_memory memory;
  uint64_t begin, bytes; /* the registered part */
  struct hk_gpu_import *next;
} hk_gpu_import;

typedef struct hk_gpu_buffers {
  ncclComm_t comm;
  hk_device *device;
  bool apart;                        /* this rank reaches ranks on other GPUs or in other processes */
  hk_gpu_buffer *first, *dropped;    /* dropped: launches may be reading their tables */
  uint64_t last_buffer, last_window; /* keys */
  hk_gpu_import *imports;            /* the service thread changes the list until no rank asks any more */
  pthread_mutex_t imports_lock;
  struct hk_gpu_buffers *next; /* list of the communicators that may have registered memory */
} hk_gpu_buffers;

void hk_gpu_buffers_begin(ncclComm_t c);
void hk_gpu_buffers_free_late(struct hk_gpu_process_group *w); /* frees w->late */
void hk_gpu_buffers_end(ncclComm_t c);                         /* once no rank asks any more and no launch runs */
/* As in hk_memory_ops; the handle is an hk_gpu_buffer. */
hk_status hk_gpu_buffer_add(ncclComm_t c, void *base, size_t bytes, bool symmetric, void **handle);
void hk_gpu_buffer_drop(ncclComm_t c, void *base, size_t bytes, void *handle);
/* Memory of this process is being freed: invalidates the registrations that still name it. */
void hk_gpu_buffers_forget(const void *base, size_t bytes);
/* The tables for the input and the output of a collective; NULL: no table. */
hk_status hk_gpu_buffers_of(ncclComm_t c, const struct hk_call *call, const int64_t **in, const int64_t **out);
/* *reads: `peer` can read that memory itself. *table: the offsets; NULL: the peer uses the same address. */
hk_status hk_gpu_buffer_for(ncclComm_t c, int peer, const void *p, size_t bytes, bool *reads, const int64_t **table);

/* The symmetric window that contains the whole range, opened for the other ranks; *out NULL: none. */
hk_status hk_gpu_buffer_window(ncclComm_t c, const void *p, size_t bytes, hk_gpu_buffer **out);
/* Waits until this rank knows the addresses of the other ranks' windows. They open theirs in the same call. */
hk_status hk_gpu_buffer_meet(ncclComm_t c, hk_gpu_buffer *v);
