/* SPDX-License-Identifier: Apache-2.0 */
/* What streams do apart from kernels: copies, fills, host functions, words that are written and waited for. */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "memory.h"

typedef struct copy {
  uint64_t dst, src;
  size_t bytes;
  void *staged; /* of pageable memory: its content when the call was made */
} copy;
static CUresult run_copy(void *data, CUcontext ctx) {
  copy *c = data;
  (void)ctx;
  int to = emu_memory_device(c->dst), from = c->staged ? -1 : emu_memory_device(c->src);
  emu_memory_open();
  memmove((void *)(uintptr_t)c->dst, c->staged ? c->staged : (void *)(uintptr_t)c->src, c->bytes);
  if (emu.corrupt_peer && to >= 0 && from >= 0 && to != from) ((char *)(uintptr_t)c->dst)[c->bytes / 2] ^= 1;
  emu_memory_close();
  return CUDA_SUCCESS;
}
static void drop_copy(void *data) { free(((copy *)data)->staged); }

static bool pageable(uint64_t at) {
  pthread_mutex_lock(&emu_lock);
  bool is = !emu_memory_is_device(at) && !emu_area_of(at);
  pthread_mutex_unlock(&emu_lock);
  return is;
}
static bool inside(uint64_t at, size_t bytes) {
  pthread_mutex_lock(&emu_lock);
  emu_area *a = emu_memory_is_device(at) ? emu_area_of(at) : NULL;
  bool ok = !emu_memory_is_device(at) ||
            (a && a->kind != EMU_SPACE && (a->kind == EMU_MAP || at + bytes <= a->at + a->bytes));
  pthread_mutex_unlock(&emu_lock);
  return ok;
}
static bool capturing(CUstream stream) {
  CUresult code;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  bool is = s && s->capture;
  pthread_mutex_unlock(&emu_lock);
  return is;
}

CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes, CUstream stream) {
  if (!bytes) return CUDA_SUCCESS;
  if (!inside(dst, bytes) || !inside(src, bytes)) return CUDA_ERROR_INVALID_VALUE;
  copy *c = calloc(1, sizeof *c);
  if (!c) abort();
  *c = (copy){dst, src, bytes, NULL};
  bool graph = capturing(stream), back = pageable(dst);
  if (!graph && pageable(src) && (c->staged = malloc(bytes)) != NULL) memcpy(c->staged, (void *)(uintptr_t)src, bytes);
  CUresult code = emu_submit(stream, emu_work_new(run_copy, c, drop_copy));
  /* The driver's copies to pageable memory return when they are done. */
  return code || graph || !back ? code : cuStreamSynchronize(stream);
}
static CUresult copy_now(CUdeviceptr dst, CUdeviceptr src, size_t bytes) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  code = emu_capture_forbids();
  pthread_mutex_unlock(&emu_lock);
  if (!code) code = cuMemcpyAsync(dst, src, bytes, CU_STREAM_LEGACY);
  return code ? code : cuStreamSynchronize(CU_STREAM_LEGACY);
}
#define ADDRESS(p) ((CUdeviceptr)(uintptr_t)(p))
#define COPY(name, dst_type, src_type)                                                                                 \
  EXPORT CUresult name##_v2(dst_type dst, src_type src, size_t bytes);                                                 \
  CUresult name##_v2(dst_type dst, src_type src, size_t bytes) { return copy_now(ADDRESS(dst), ADDRESS(src), bytes); } \
  EXPORT CUresult name##Async_v2(dst_type dst, src_type src, size_t bytes, CUstream stream);                           \
  CUresult name##Async_v2(dst_type dst, src_type src, size_t bytes, CUstream stream) {                                 \
    return cuMemcpyAsync(ADDRESS(dst), ADDRESS(src), bytes, stream);                                                   \
  }
COPY(cuMemcpyHtoD, CUdeviceptr, const void *)
COPY(cuMemcpyDtoH, void *, CUdeviceptr)
COPY(cuMemcpyDtoD, CUdeviceptr, CUdeviceptr)
EXPORT CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes);
CUresult cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t bytes) { return copy_now(dst, src, bytes); }
EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes,
                                  CUstream s);
CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t bytes, CUstream s) {
  return to && from ? cuMemcpyAsync(dst, src, bytes, s) : CUDA_ERROR_INVALID_CONTEXT;
}

/* ---- fills ---- */

typedef struct fill {
  uint64_t at;
  size_t count;
  uint32_t value;
  unsigned bytes; /* of an element */
} fill;
static CUresult run_fill(void *data, CUcontext ctx) {
  const fill *f = data;
  (void)ctx;
  emu_memory_open();
  char *p = (char *)(uintptr_t)f->at;
  if (f->bytes == 1) memset(p, (int)f->value, f->count);
  for (size_t i = 0; f->bytes > 1 && i < f->count; i++) memcpy(p + i * f->bytes, &f->value, f->bytes);
  emu_memory_close();
  return CUDA_SUCCESS;
}
static CUresult submit_fill(CUdeviceptr at, uint32_t value, unsigned bytes, size_t count, CUstream stream) {
  if (!inside(at, count * bytes) || at % bytes) return CUDA_ERROR_INVALID_VALUE;
  fill *f = malloc(sizeof *f);
  if (!f) abort();
  *f = (fill){at, count, value, bytes};
  return emu_submit(stream, emu_work_new(run_fill, f, NULL));
}
CUresult cuMemsetD8Async(CUdeviceptr ptr, unsigned char value, size_t bytes, CUstream stream) {
  return submit_fill(ptr, value, 1, bytes, stream);
}
#define FILL(bits, type)                                                                                               \
  EXPORT CUresult cuMemsetD##bits##_v2(CUdeviceptr ptr, type value, size_t count);                                     \
  CUresult cuMemsetD##bits##_v2(CUdeviceptr ptr, type value, size_t count) {                                           \
    CUresult code = submit_fill(ptr, value, sizeof(type), count, CU_STREAM_LEGACY);                                    \
    return code ? code : cuStreamSynchronize(CU_STREAM_LEGACY);                                                        \
  }
FILL(8, unsigned char)
FILL(16, unsigned short)
FILL(32, unsigned)
EXPORT CUresult cuMemsetD32Async(CUdeviceptr ptr, unsigned value, size_t count, CUstream stream);
CUresult cuMemsetD32Async(CUdeviceptr ptr, unsigned value, size_t count, CUstream stream) {
  return submit_fill(ptr, value, 4, count, stream);
}

/* ---- host functions ---- */

typedef struct call {
  CUhostFn fn;
  void *arg;
} call;
static CUresult run_call(void *data, CUcontext ctx) {
  const call *c = data;
  (void)ctx;
  c->fn(c->arg);
  return CUDA_SUCCESS;
}
CUresult cuLaunchHostFunc(CUstream stream, CUhostFn fn, void *arg) {
  if (!fn) return CUDA_ERROR_INVALID_VALUE;
  call *c = malloc(sizeof *c);
  if (!c) abort();
  *c = (call){fn, arg};
  emu_work *work = emu_work_new(run_call, c, NULL);
  work->blocks = true;
  return emu_submit(stream, work);
}

/* ---- words ---- */

typedef struct word {
  uint64_t at, value;
  unsigned flags, bytes;
  bool waits;
} word;
static bool holds(const word *w, uint64_t now) {
  int64_t ahead = w->bytes == 4 ? (int32_t)((uint32_t)now - (uint32_t)w->value) : (int64_t)(now - w->value);
  switch (w->flags & 7) {
    case 0: return ahead >= 0;
    case 1: return now == w->value;
    case 2: return (now & w->value) != 0;
    default: return ~(now | w->value) != 0;
  }
}
static CUresult run_word(void *data, CUcontext ctx) {
  const word *w = data;
  void *p = (void *)(uintptr_t)w->at;
  struct timespec t = {0, 20000};
  (void)ctx;
  emu_memory_open();
  if (w->waits)
    while (!holds(w, w->bytes == 4 ? __atomic_load_n((uint32_t *)p, __ATOMIC_ACQUIRE)
                                   : __atomic_load_n((uint64_t *)p, __ATOMIC_ACQUIRE)))
      nanosleep(&t, NULL);
  else if (w->bytes == 4)
    __atomic_store_n((uint32_t *)p, (uint32_t)w->value, __ATOMIC_RELEASE);
  else
    __atomic_store_n((uint64_t *)p, w->value, __ATOMIC_RELEASE);
  emu_memory_close();
  return CUDA_SUCCESS;
}
static CUresult submit_word(CUstream stream, CUdeviceptr at, uint64_t value, unsigned flags, unsigned bytes,
                            bool waits) {
  if (at % bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!emu.captured_words && capturing(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  word *w = malloc(sizeof *w);
  if (!w) abort();
  *w = (word){at, value, flags, bytes, waits};
  emu_work *work = emu_work_new(run_word, w, NULL);
  work->blocks = waits;
  return emu_submit(stream, work);
}
#define WORD(name, type, waits)                                                                                        \
  EXPORT CUresult name(CUstream stream, CUdeviceptr at, type value, unsigned flags);                                   \
  CUresult name(CUstream stream, CUdeviceptr at, type value, unsigned flags) {                                         \
    return submit_word(stream, at, value, flags, sizeof(type), waits);                                                 \
  }
WORD(cuStreamWriteValue32_v2, uint32_t, false)
WORD(cuStreamWriteValue64_v2, uint64_t, false)
WORD(cuStreamWaitValue32_v2, uint32_t, true)
WORD(cuStreamWaitValue64_v2, uint64_t, true)
