/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Zero copy between GPUs, and between processes: registered memory is opened for the ranks that reach this rank's
 * memory when a call first uses it.  Tables that the kernels read say what each rank adds to an address.
 */
#ifndef HK_GPU_BUFFER_H
#define HK_GPU_BUFFER_H
#include "gpu.h"

/* Registered memory, and how the other ranks' GPUs reach it. */
typedef struct hk_gpu_buffer {
  uintptr_t begin, end;
  uint64_t key, id; /* ours; the allocation's when it was shared, 0: unknown */
  bool made, unusable;
  bool symmetric;    /* a window that all ranks have registered, in the same order: its key counts those */
  bool shareable;    /* virtual memory, which lives as long as any process has it open */
  uint64_t *theirs;  /* [nranks] where the others' windows of this key begin for this rank; 0: not known yet */
  int64_t *seen;     /* [nranks], as a kernel's table */
  hk_memory *opened; /* [nranks]: by this process, for its ranks on other GPUs */
  int64_t *table;    /* of `seen` in device memory; NULL: none yet */
  struct hk_gpu_buffer *next;
} hk_gpu_buffer;

/* Memory that a rank of another process has registered, opened for this one. */
typedef struct hk_gpu_import {
  int from;
  uint64_t key;
  hk_memory memory;
  uint64_t begin, bytes; /* of what is registered */
  struct hk_gpu_import *next;
} hk_gpu_import;

void hk_gpu_buffers_begin(ncclComm_t c);
void hk_gpu_buffers_free_late(struct hk_gpu_process_group *w); /* frees w->late */
void hk_gpu_buffers_end(ncclComm_t c);                         /* no rank asks any more, and no launch runs */
/* From any thread. */
hk_status hk_gpu_buffer_add(ncclComm_t c, const void *base, size_t bytes, bool symmetric, hk_gpu_buffer **out);
void hk_gpu_buffer_drop(ncclComm_t c, hk_gpu_buffer *v);
/* Memory of this process is freed: registrations that still name it become void. */
void hk_gpu_buffers_forget(const void *base, size_t bytes);
/* The tables for a collective's buffers; NULL: none. */
hk_status hk_gpu_buffers_of(ncclComm_t c, const struct hk_call *call, const int64_t **in, const int64_t **out);
/* Whether `peer` reads that memory itself, and the table that says where; NULL: at the same address. */
hk_status hk_gpu_buffer_for(ncclComm_t c, int peer, const void *p, size_t bytes, bool *reads, const int64_t **table);

/* The symmetric window that contains all of it, open for the others; NULL: there is none. */
hk_status hk_gpu_buffer_window(ncclComm_t c, const void *p, size_t bytes, hk_gpu_buffer **out);
/* Waits until the others' windows are known to this rank: they open theirs in the same call. */
hk_status hk_gpu_buffer_meet(ncclComm_t c, hk_gpu_buffer *v);
#endif
