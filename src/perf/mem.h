/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of buffers: the host's or a GPU's. Functions return 0 or a negative number unless stated otherwise. */
#pragma once
#include <nccl.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct perf_mem {
  const char *name;
  const char *usage_title; /* of the -M line */
  bool direct;             /* the CPU may read and write the buffers */
  int (*device_count)(void);
  int (*use)(int device);                                    /* binds the calling thread to a device */
  void (*describe)(int device, char *text, size_t capacity); /* "[0000:00:00] name", as in the list of devices */
  /* bytes available to buffers of all local ranks of the device */
  size_t (*capacity)(int device);
  size_t (*used)(int device);   /* bytes in use now, for -M */
  void *(*alloc)(size_t bytes); /* NULL on failure. Plain memory, touched; the caller may use ncclMemAlloc instead */
  void (*free)(void *p);
  int (*zero)(void *p, size_t bytes);
  int (*put)(void *to, const void *from_host, size_t bytes);
  int (*get)(void *to_host, const void *from, size_t bytes);
  int (*copy)(void *to, const void *from, size_t bytes, cudaStream_t s); /* in the stream's order */
  int (*stream_create)(cudaStream_t *s);
  int (*stream_done)(cudaStream_t s); /* 1 when all its work is complete, 0 when not */
  void (*stream_destroy)(cudaStream_t s);
  /* The operations between these two become a graph, which can be launched several times. NULL: no graphs. */
  int (*capture_begin)(cudaStream_t s);
  void *(*capture_end)(cudaStream_t s); /* NULL on failure */
  int (*graph_launch)(void *graph, cudaStream_t s);
  void (*graph_free)(void *graph);
} perf_mem;

extern const perf_mem perf_mem_host;
/* The backend of this process: fixed at the first call. */
const perf_mem *perf_mem_select(void);
