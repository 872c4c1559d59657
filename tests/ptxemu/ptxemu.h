/* SPDX-License-Identifier: Apache-2.0 */
/**
 * An interpreter of PTX, as nvcc writes it: docs/cudaemu.md says what it models.  The emulated driver loads modules and
 * runs launches through this header alone.
 */
#ifndef HK_PTXEMU_PTXEMU_H
#define HK_PTXEMU_PTXEMU_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ptx_module ptx_module;
typedef struct ptx_fn ptx_fn;
typedef struct ptx_grid ptx_grid;

/* `text` needs not stay.  NULL, with the reason in why: it is no PTX that can be read. */
ptx_module *ptx_module_load(const char *text, size_t bytes, char *why, size_t capacity);
void ptx_module_drop(ptx_module *m);
/* A kernel by its name; NULL: there is none. */
ptx_fn *ptx_module_kernel(ptx_module *m, const char *name);
/* A variable in global or constant memory; NULL: there is none. */
void *ptx_module_variable(ptx_module *m, const char *name, size_t *bytes);
/* Its n-th parameter's place among the bytes of all; false: it has fewer. */
bool ptx_kernel_param(const ptx_fn *f, unsigned n, size_t *at, size_t *bytes);
size_t ptx_kernel_param_bytes(const ptx_fn *f);

typedef struct ptx_launch {
  ptx_fn *kernel;
  unsigned grid[3], block[3];
  size_t dynamic_shared;
  const void *params;
  int device;
  unsigned sms, seed;
  bool weak;    /* the memory model, not just memory: model.c */
  bool aliases; /* multicast stores are ordered by alias fences alone, not by releases */
  bool apart;   /* threads that part meet again where they synchronise, and nowhere else */
} ptx_launch;
/* NULL, with the reason on stderr: the kernel has an instruction that is not known. */
ptx_grid *ptx_grid_new(const ptx_launch *l);
void ptx_grid_drop(ptx_grid *g);

/* What a visit of a block found. */
typedef struct ptx_visit {
  unsigned live;       /* threads that have not ended */
  bool ready;          /* some can go on */
  bool progress;       /* something other than a wait was done */
  bool failed;         /* a thread did what it must not: said on stderr */
  unsigned at_barrier; /* threads that wait at the block's, at a warp's */
  unsigned at_warp;
} ptx_visit;
void ptx_grid_visit(ptx_grid *g, unsigned block, ptx_visit *v);
/* Where its threads are, on stderr. */
void ptx_grid_describe(const ptx_grid *g);
/* PTX inside anything that nvcc makes (text, a fatbin, an object with one): the text of the highest architecture up to
 * `sm`, or NULL, with the reason.  To be freed. */
char *ptx_of_image(const void *image, int sm, char *why, size_t capacity);
#endif
