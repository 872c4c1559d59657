/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: which streams take part, what the next node follows, and what must not be called meanwhile. */
#include <stdlib.h>
#include <string.h>
#include "graph.h"

enum { /* CUresult */
       CAPTURE_MERGE = 902,
       CAPTURE_UNMATCHED = 903,
       CAPTURE_UNJOINED = 904,
       CAPTURE_ISOLATION = 905,
       CAPTURED_EVENT = 907,
       CAPTURE_WRONG_THREAD = 908
};

struct emu_capture {
  uint64_t id;
  bool broken, ended; /* ended ones are kept: events may still name them */
  int mode;
  pthread_t thread;
  CUstream origin;
  CUgraph graph;
  emu_capture *next;
};
static emu_capture *captures;
static uint64_t ids;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

CUgraph emu_capture_graph(CUstream s) { return s->capture->graph; }
void emu_capture_set(CUstream s, CUgraphNode *tips, size_t n) {
  CUgraphNode *copy = malloc(sizeof *copy * (n + 1));
  if (!copy) abort();
  if (n) memcpy(copy, tips, sizeof *copy * n);
  free(s->tips);
  s->tips = copy;
  s->ntips = n;
}
static void add_tip(CUstream s, CUgraphNode tip) {
  for (size_t i = 0; i < s->ntips; i++)
    if (s->tips[i] == tip) return;
  s->tips = realloc(s->tips, sizeof *s->tips * (s->ntips + 1));
  if (!s->tips) abort();
  s->tips[s->ntips++] = tip;
}

CUresult emu_capture_add(CUstream s, emu_work *work) {
  if (s->capture->broken) {
    emu_work_unref(work);
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  }
  CUgraphNode n = emu_graph_add(s->capture->graph, work, s->tips, s->ntips);
  emu_capture_set(s, &n, 1);
  return CUDA_SUCCESS;
}

CUresult emu_capture_forbids(void) {
  CUresult code = CUDA_SUCCESS;
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return code;
  for (emu_capture *c = captures; c; c = c->next) {
    if (c->ended || c->mode == CU_STREAM_CAPTURE_MODE_RELAXED) continue;
    bool mine = pthread_equal(c->thread, pthread_self());
    if (!mine && (c->mode != CU_STREAM_CAPTURE_MODE_GLOBAL || thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL)) continue;
    c->broken = true;
    code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  }
  return code;
}
CUresult emu_capture_implicit(CUcontext ctx) {
  for (CUstream s = ctx->streams; s; s = s->next)
    if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING)) {
      s->capture->broken = true;
      return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
  return CUDA_SUCCESS;
}
CUresult emu_capture_break(CUstream s) {
  s->capture->broken = true;
  return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult emu_capture_wait_external(CUstream s, CUevent e) {
  CUresult code = emu_capture_add(s, NULL);
  if (!code) s->tips[0]->waits = e;
  return code;
}
CUresult emu_capture_record_external(CUstream s, CUevent e) {
  CUresult code = emu_capture_add(s, NULL);
  if (!code) s->tips[0]->records = e;
  return code;
}

CUresult emu_capture_event(CUstream s, CUevent e) {
  if (s->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  emu_event_reset(e);
  e->capture = s->capture;
  e->tips = malloc(sizeof *e->tips * (s->ntips + 1));
  if (!e->tips) abort();
  if (s->ntips) memcpy(e->tips, s->tips, sizeof *e->tips * s->ntips);
  e->ntips = s->ntips;
  return CUDA_SUCCESS;
}
CUresult emu_capture_wait(CUstream s, CUevent e) {
  emu_capture *c = e->capture;
  if (s->capture && s->capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  if (!c) { /* an event from outside; one never recorded is nothing */
    if (!e->op) return CUDA_SUCCESS;
    s->capture->broken = true;
    return CAPTURE_ISOLATION;
  }
  if (c->ended) return CAPTURED_EVENT;
  if (s->legacy) {
    c->broken = true;
    return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
  }
  if (!s->capture) {
    s->capture = c;
    emu_capture_set(s, e->tips, e->ntips);
    return CUDA_SUCCESS;
  }
  if (s->capture != c) {
    s->capture->broken = c->broken = true;
    return CAPTURE_MERGE;
  }
  for (size_t i = 0; i < e->ntips; i++) add_tip(s, e->tips[i]);
  return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode) {
  if (!mode || *mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  int old = thread_mode;
  thread_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
  CUresult code = CUDA_SUCCESS;
  if (mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->legacy) code = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  if (s && s->capture) code = CUDA_ERROR_INVALID_VALUE;
  if (!s || code) return emu_unlock(code);
  emu_capture *c = calloc(1, sizeof *c);
  if (!c) abort();
  *c = (emu_capture){.id = ++ids, .mode = mode, .thread = pthread_self(), .origin = s, .graph = emu_graph_new()};
  c->next = captures;
  captures = c;
  s->capture = c;
  emu_capture_set(s, NULL, 0);
  return emu_unlock(CUDA_SUCCESS);
}

/* Marks what the node follows, itself included. */
static void mark(bool *seen, CUgraphNode n) {
  if (seen[n->index]) return;
  seen[n->index] = true;
  for (size_t i = 0; i < n->ndeps; i++) mark(seen, n->deps[i]);
}
/* The streams leave; true if all that they did comes after the origin. */
static bool leave(emu_capture *c) {
  bool joined = true, *seen = calloc(c->graph->count + 1, sizeof *seen);
  if (!seen) abort();
  for (size_t i = 0; i < c->origin->ntips; i++) mark(seen, c->origin->tips[i]);
  for (size_t i = 0; i < c->graph->count; i++) joined = joined && (seen[i] || c->graph->nodes[i]->apart);
  free(seen);
  for (int d = 0; d < emu.ndevices; d++) {
    CUcontext ctx = emu_primary(d);
    for (CUstream s = ctx ? ctx->streams : NULL; s; s = s->next)
      if (s->capture == c) {
        s->capture = NULL;
        emu_capture_set(s, NULL, 0);
      }
  }
  return joined;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
  CUresult code = CUDA_SUCCESS;
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  *graph = NULL;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && !s->capture) code = CUDA_ERROR_INVALID_VALUE;
  if (!s || code) return emu_unlock(code);
  emu_capture *c = s->capture;
  if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !pthread_equal(c->thread, pthread_self()))
    return emu_unlock(CAPTURE_WRONG_THREAD);
  if (c->origin != s) {
    c->broken = true;
    return emu_unlock(CAPTURE_UNMATCHED);
  }
  bool joined = leave(c);
  c->ended = true;
  CUgraph g = c->graph;
  c->graph = NULL;
  code = c->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : joined ? CUDA_SUCCESS : CAPTURE_UNJOINED;
  pthread_mutex_unlock(&emu_lock);
  if (code)
    cuGraphDestroy(g);
  else
    *graph = g;
  return code;
}

static CUresult info(CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps,
                     size_t *ndeps) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (!s) return emu_unlock(code);
  if (s->legacy && (code = emu_capture_implicit(s->ctx)) != CUDA_SUCCESS) return emu_unlock(code);
  emu_capture *c = s->capture;
  *status = !c          ? CU_STREAM_CAPTURE_STATUS_NONE
            : c->broken ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                        : CU_STREAM_CAPTURE_STATUS_ACTIVE;
  if (c && id) *id = c->id;
  if (c && graph) *graph = c->graph;
  if (c && deps) *deps = s->tips;
  if (c && ndeps) *ndeps = s->ntips;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, uint64_t *id, CUgraph *graph, const CUgraphNode **deps,
                                   size_t *ndeps) {
  return status ? info(stream, status, id, graph, deps, ndeps) : CUDA_ERROR_INVALID_VALUE;
}
EXPORT CUresult cuStreamIsCapturing(CUstream stream, int *status);
CUresult cuStreamIsCapturing(CUstream stream, int *status) {
  return status ? info(stream, status, NULL, NULL, NULL, NULL) : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *deps, size_t ndeps, unsigned flags) {
  CUresult code = CUDA_SUCCESS;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && !s->capture) code = CUDA_ERROR_INVALID_VALUE;
  if (!s || code) return emu_unlock(code);
  if (s->capture->broken) return emu_unlock(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES)
    emu_capture_set(s, deps, ndeps);
  else
    for (size_t i = 0; i < ndeps; i++) add_tip(s, deps[i]);
  return emu_unlock(CUDA_SUCCESS);
}
