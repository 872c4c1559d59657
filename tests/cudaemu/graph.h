/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs, as captures make them.  The lock is held in all of it. */
#ifndef HK_CUDAEMU_GRAPH_H
#define HK_CUDAEMU_GRAPH_H
#include "emu.h"

struct CUgraphNode_st {
  emu_work *work; /* NULL: it only orders */
  CUgraphNode *deps;
  size_t ndeps, index;
  CUevent waits, records; /* an event of the user's, at each launch; NULL: none */
  bool apart;             /* added by hand: no stream of the capture has to reach it */
};
typedef struct emu_held {
  CUuserObject object;
  unsigned count;
} emu_held;
struct CUgraph_st {
  CUgraphNode *nodes; /* after those they depend on */
  size_t count;
  emu_held *objects;
  size_t nobjects;
};
CUgraph emu_graph_new(void);
CUgraphNode emu_graph_add(CUgraph g, emu_work *work, CUgraphNode *deps, size_t ndeps);
CUgraph emu_capture_graph(CUstream s);
void emu_capture_set(CUstream s, CUgraphNode *tips, size_t n);
void emu_object_unref(CUuserObject o, unsigned n);
void emu_bury(void); /* without the lock */
#endif
