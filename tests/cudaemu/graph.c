/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: nodes with what they do and whom they follow.  Instantiated, the nodes are divided into chains; a launch puts
 * the first chain into the stream and the others into streams of the graph's own, so that branches run side by side. */
#include "graph.h"
#include <stdlib.h>
#include <string.h>

/* ---- user objects: destroyed outside the lock, as they may take locks of the user's ---- */

struct CUuserObject_st {
  unsigned refs;
  void *ptr;
  CUhostFn destroy;
  CUuserObject next;
};
static CUuserObject dead;

void emu_object_unref(CUuserObject o, unsigned n) {
  o->refs -= n < o->refs ? n : o->refs;
  if (o->refs) return;
  o->next = dead;
  dead = o;
}
void emu_bury(void) {
  pthread_mutex_lock(&emu_lock);
  CUuserObject list = dead;
  dead = NULL;
  pthread_mutex_unlock(&emu_lock);
  while (list) {
    CUuserObject o = list;
    list = o->next;
    o->destroy(o->ptr);
    free(o);
  }
}
CUresult cuUserObjectCreate(CUuserObject *object, void *ptr, CUhostFn destroy, unsigned refs, unsigned flags) {
  if (!object || !destroy || !refs || flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
  CUuserObject o = calloc(1, sizeof *o);
  if (!o) return CUDA_ERROR_OUT_OF_MEMORY;
  *o = (struct CUuserObject_st){.refs = refs, .ptr = ptr, .destroy = destroy};
  *object = o;
  return CUDA_SUCCESS;
}
EXPORT CUresult cuUserObjectRetain(CUuserObject object, unsigned count);
CUresult cuUserObjectRetain(CUuserObject object, unsigned count) {
  pthread_mutex_lock(&emu_lock);
  object->refs += count;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuUserObjectRelease(CUuserObject object, unsigned count) {
  if (!object || !count) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  emu_object_unref(object, count);
  pthread_mutex_unlock(&emu_lock);
  emu_bury();
  return CUDA_SUCCESS;
}
CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned count, unsigned flags) {
  if (!graph || !object || !count) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  graph->objects = realloc(graph->objects, sizeof(emu_held) * (graph->nobjects + 1));
  if (!graph->objects) abort();
  graph->objects[graph->nobjects++] = (emu_held){object, count};
  if (!(flags & CU_GRAPH_USER_OBJECT_MOVE)) object->refs += count;
  return emu_unlock(CUDA_SUCCESS);
}

/* ---- graphs ---- */

CUgraph emu_graph_new(void) {
  CUgraph g = calloc(1, sizeof *g);
  if (!g) abort();
  return g;
}
CUgraphNode emu_graph_add(CUgraph g, emu_work *work, CUgraphNode *deps, size_t ndeps) {
  CUgraphNode n = calloc(1, sizeof *n);
  CUgraphNode *nodes = realloc(g->nodes, sizeof *nodes * (g->count + 1));
  if (!n || !nodes) abort();
  g->nodes = nodes;
  n->work = work;
  n->index = g->count;
  n->ndeps = ndeps;
  n->deps = malloc(sizeof *deps * (ndeps + 1));
  if (!n->deps) abort();
  if (ndeps) memcpy(n->deps, deps, sizeof *deps * ndeps);
  g->nodes[g->count++] = n;
  return n;
}
/* Gives the works that the caller drops without the lock, as that may call the user's functions. */
static void drop_graph(CUgraph g) {
  for (size_t i = 0; i < g->nobjects; i++) emu_object_unref(g->objects[i].object, g->objects[i].count);
  pthread_mutex_unlock(&emu_lock);
  for (size_t i = 0; i < g->count; i++) {
    emu_work_unref(g->nodes[i]->work);
    free(g->nodes[i]->deps);
    free(g->nodes[i]);
  }
  free(g->nodes);
  free(g->objects);
  free(g);
  pthread_mutex_lock(&emu_lock);
}
CUresult cuGraphDestroy(CUgraph graph) {
  if (!graph) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  drop_graph(graph);
  pthread_mutex_unlock(&emu_lock);
  emu_bury();
  return CUDA_SUCCESS;
}
EXPORT CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count);
CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count) {
  if (!graph || !count) return CUDA_ERROR_INVALID_VALUE;
  size_t n = nodes && *count < graph->count ? *count : graph->count;
  if (nodes) memcpy(nodes, graph->nodes, sizeof *nodes * n);
  *count = n;
  return CUDA_SUCCESS;
}

/* Nodes by hand: those that record an event, and more dependencies of a node that no other one depends on. */
CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t ndeps,
                                   CUevent event) {
  if (!node || !graph || !event || (ndeps && !deps)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUgraphNode *copy = malloc(sizeof *copy * (ndeps + 1));
  if (!copy) abort();
  if (ndeps) memcpy(copy, deps, sizeof *copy * ndeps);
  *node = emu_graph_add(graph, NULL, copy, ndeps);
  (*node)->records = event;
  (*node)->apart = true;
  free(copy);
  return emu_unlock(CUDA_SUCCESS);
}
static void move_to_end(CUgraph g, CUgraphNode n) {
  for (size_t i = n->index; i + 1 < g->count; i++) {
    g->nodes[i] = g->nodes[i + 1];
    g->nodes[i]->index = i;
  }
  g->nodes[g->count - 1] = n;
  n->index = g->count - 1;
}
static bool depends(CUgraphNode n, CUgraphNode on) {
  for (size_t i = 0; i < n->ndeps; i++)
    if (n->deps[i] == on) return true;
  return false;
}
CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count) {
  if (!graph || (count && (!from || !to))) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  for (size_t i = 0; i < count; i++) {
    CUgraphNode n = to[i];
    if (!n->apart) return emu_unlock(CUDA_ERROR_NOT_SUPPORTED);
    if (depends(n, from[i])) return emu_unlock(CUDA_ERROR_INVALID_VALUE);
    n->deps = realloc(n->deps, sizeof(CUgraphNode) * (n->ndeps + 1));
    if (!n->deps) abort();
    n->deps[n->ndeps++] = from[i];
    move_to_end(graph, n);
  }
  return emu_unlock(CUDA_SUCCESS);
}

/* ---- instances ---- */

typedef struct step {
  emu_work *work;
  size_t *deps, ndeps;
  unsigned chain;
  bool leaf;
  CUevent waits, records;
} step;
struct CUgraphExec_st {
  int refs; /* the user's, and one for each launch that goes on */
  step *steps;
  size_t count;
  unsigned chains;
  CUstream *streams; /* of the chains after the first, made for the context of the first launch */
  emu_op *last;      /* of the last launch: launches of one instance follow each other */
  emu_held *objects;
  size_t nobjects;
};

static void exec_unref(CUgraphExec x) {
  if (--x->refs) return;
  for (size_t i = 0; i < x->nobjects; i++) emu_object_unref(x->objects[i].object, 1);
  for (unsigned i = 1; x->streams && i < x->chains; i++) emu_stream_close(x->streams[i]);
  emu_op_unref(x->last);
  pthread_mutex_unlock(&emu_lock);
  for (size_t i = 0; i < x->count; i++) {
    emu_work_unref(x->steps[i].work);
    free(x->steps[i].deps);
  }
  free(x->steps);
  free(x->streams);
  free(x->objects);
  free(x);
  pthread_mutex_lock(&emu_lock);
}
/* At the end of a launch, without the lock. */
static void launch_over(void *data) {
  pthread_mutex_lock(&emu_lock);
  exec_unref(*(CUgraphExec *)data);
  pthread_mutex_unlock(&emu_lock);
  emu_bury();
}

/* A node continues the chain of its first dependency that no node has continued yet. */
static void choose_chain(CUgraphExec x, size_t i) {
  for (size_t k = 0; k < x->steps[i].ndeps; k++) {
    step *before = &x->steps[x->steps[i].deps[k]];
    if (!before->leaf) continue;
    before->leaf = false;
    x->steps[i].chain = before->chain;
    for (size_t j = k + 1; j < x->steps[i].ndeps; j++) x->steps[x->steps[i].deps[j]].leaf = false;
    return;
  }
  x->steps[i].chain = x->chains++;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
  if (!exec || !graph || flags & ~0x1full) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUgraphExec x = calloc(1, sizeof *x);
  if (!x) abort();
  x->refs = 1;
  x->count = graph->count;
  x->steps = calloc(graph->count + 1, sizeof *x->steps);
  x->objects = calloc(graph->nobjects + 1, sizeof *x->objects);
  if (!x->steps || !x->objects) abort();
  for (size_t i = 0; i < graph->count; i++) {
    CUgraphNode n = graph->nodes[i];
    step *s = &x->steps[i];
    *s = (step){.work = n->work, .ndeps = n->ndeps, .leaf = true, .waits = n->waits, .records = n->records};
    s->deps = malloc(sizeof(size_t) * (n->ndeps + 1));
    if (!s->deps) abort();
    if (s->work) __atomic_add_fetch(&s->work->refs, 1, __ATOMIC_RELAXED);
    for (size_t k = 0; k < n->ndeps; k++) s->deps[k] = n->deps[k]->index;
    choose_chain(x, i);
  }
  x->nobjects = graph->nobjects;
  for (size_t i = 0; i < graph->nobjects; i++) {
    x->objects[i] = (emu_held){graph->objects[i].object, 1};
    graph->objects[i].object->refs++;
  }
  *exec = x;
  return emu_unlock(CUDA_SUCCESS);
}
CUresult cuGraphExecDestroy(CUgraphExec exec) {
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  exec_unref(exec);
  pthread_mutex_unlock(&emu_lock);
  emu_bury();
  return CUDA_SUCCESS;
}

typedef struct update_info { /* CUgraphExecUpdateResultInfo */
  int result;
  CUgraphNode node, from;
} update_info;
EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, update_info *info);
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, update_info *info) {
  enum { TOPOLOGY_CHANGED = 2, UPDATE_FAILURE = 910 };
  if (!exec || !graph || !info) return CUDA_ERROR_INVALID_VALUE;
  *info = (update_info){0, NULL, NULL};
  pthread_mutex_lock(&emu_lock);
  bool same = exec->count == graph->count;
  for (size_t i = 0; same && i < graph->count; i++) {
    same = exec->steps[i].ndeps == graph->nodes[i]->ndeps;
    for (size_t k = 0; same && k < exec->steps[i].ndeps; k++)
      same = exec->steps[i].deps[k] == graph->nodes[i]->deps[k]->index;
  }
  if (!same) {
    info->result = TOPOLOGY_CHANGED;
    return emu_unlock(UPDATE_FAILURE);
  }
  for (size_t i = 0; i < graph->count; i++) {
    emu_work *old = exec->steps[i].work;
    exec->steps[i].work = graph->nodes[i]->work;
    if (exec->steps[i].work) __atomic_add_fetch(&exec->steps[i].work->refs, 1, __ATOMIC_RELAXED);
    emu_work_unref(old);
    exec->steps[i].waits = graph->nodes[i]->waits;
    exec->steps[i].records = graph->nodes[i]->records;
  }
  return emu_unlock(CUDA_SUCCESS);
}

/* A graph launched into a capture: its nodes become the capture's. */
static CUresult launch_captured(CUgraphExec x, CUstream s) {
  size_t ntips = s->ntips, nends = 0;
  CUgraphNode *before = malloc(sizeof *before * (ntips + 1)), *made = malloc(sizeof *made * (x->count + 1));
  CUgraphNode *deps = malloc(sizeof *deps * (x->count + 1));
  if (!before || !made || !deps) abort();
  memcpy(before, s->tips, sizeof *before * ntips);
  CUgraph g = emu_capture_graph(s);
  for (size_t i = 0; i < x->count; i++) {
    step *t = &x->steps[i];
    for (size_t k = 0; k < t->ndeps; k++) deps[k] = made[t->deps[k]];
    if (t->work) __atomic_add_fetch(&t->work->refs, 1, __ATOMIC_RELAXED);
    made[i] = emu_graph_add(g, t->work, t->ndeps ? deps : before, t->ndeps ? t->ndeps : ntips);
    made[i]->waits = t->waits;
    made[i]->records = t->records;
  }
  for (size_t i = 0; i < x->count; i++)
    if (x->steps[i].leaf) deps[nends++] = made[i];
  if (nends) emu_capture_set(s, deps, nends);
  free(before);
  free(made);
  free(deps);
  return CUDA_SUCCESS;
}

static void launch_steps(CUgraphExec x, CUstream s) {
  emu_op **ops = calloc(x->count + 1, sizeof(emu_op *)), **deps = calloc(x->count + 2, sizeof(emu_op *));
  if (!ops || !deps) abort();
  emu_op *start = emu_enqueue(s, NULL, &x->last, x->last ? 1 : 0);
  for (size_t i = 0; i < x->count; i++) {
    step *t = &x->steps[i];
    for (size_t k = 0; k < t->ndeps; k++) deps[k] = ops[t->deps[k]];
    size_t ndeps = t->ndeps;
    if (!ndeps) deps[ndeps++] = start;
    if (t->waits && t->waits->op) deps[ndeps++] = t->waits->op; /* what the event means at the launch */
    if (t->work) __atomic_add_fetch(&t->work->refs, 1, __ATOMIC_RELAXED);
    ops[i] = emu_enqueue_node(t->chain ? x->streams[t->chain] : s, t->work, deps, ndeps);
    if (!t->records) continue;
    emu_event_reset(t->records);
    t->records->op = ops[i];
    ops[i]->refs++;
  }
  size_t n = 0;
  for (size_t i = 0; i < x->count; i++)
    if (x->steps[i].leaf) deps[n++] = ops[i];
  CUgraphExec *held = malloc(sizeof(CUgraphExec));
  if (!held) abort();
  *held = x;
  x->refs++;
  emu_op *end = emu_enqueue_node(s, emu_work_new(NULL, held, launch_over), deps, n);
  emu_op_unref(x->last);
  x->last = end;
  for (size_t i = 0; i < x->count; i++) emu_op_unref(ops[i]);
  emu_op_unref(start);
  free(ops);
  free(deps);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) {
  CUresult code = CUDA_SUCCESS;
  if (!exec) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&emu_lock);
  CUstream s = emu_stream(stream, &code);
  if (s && s->legacy) code = emu_capture_implicit(s->ctx);
  if (!s || code) return emu_unlock(code);
  if (s->capture) return emu_unlock(launch_captured(exec, s));
  if (!exec->streams) {
    exec->streams = calloc(exec->chains + 1, sizeof(CUstream));
    if (!exec->streams) abort();
    for (unsigned i = 1; i < exec->chains; i++)
      exec->streams[i] = emu_stream_new(s->ctx, CU_STREAM_NON_BLOCKING, s->priority);
  }
  launch_steps(exec, s);
  return emu_unlock(CUDA_SUCCESS);
}
