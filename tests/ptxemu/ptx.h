/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Inside the PTX interpreter: a module's text becomes functions of decoded instructions, which run a warp at a time.
 *
 * A virtual register is a row: one value for each of 32 lanes, 4 bytes wide (8 of 64-bit types); a predicate is a word
 * with a bit a lane.  Rows lie in frames on the warp's stack; immediate values are rows, too, in the module.
 */
#ifndef HK_PTXEMU_PTX_H
#define HK_PTXEMU_PTX_H
#include <pthread.h>
#include "ptxemu.h"

enum { LANES = 32, WARP_STACK = 4 << 20, CONSTS = 8 << 20, SHARED_ROOM = 512 << 10, SHARED_STATIC = 256 << 10 };

typedef enum ptx_type {
  T_NONE,
  T_U8,
  T_S8,
  T_B8,
  T_U16,
  T_S16,
  T_B16,
  T_U32,
  T_S32,
  T_B32,
  T_U64,
  T_S64,
  T_B64,
  T_F16,
  T_BF16,
  T_F16X2,
  T_BF16X2,
  T_F32,
  T_F64,
  T_PRED,
  T_B128,
  T_E4M3X2,
  T_E5M2X2
} ptx_type;
typedef enum ptx_space { SP_GENERIC, SP_GLOBAL, SP_SHARED, SP_LOCAL, SP_PARAM, SP_CONST } ptx_space;
typedef enum ptx_sem { SEM_WEAK, SEM_RELAXED, SEM_ACQUIRE, SEM_RELEASE, SEM_ACQ_REL, SEM_SC } ptx_sem;
typedef enum ptx_scope { SCOPE_CTA, SCOPE_GPU, SCOPE_SYS } ptx_scope;
typedef enum ptx_kind { K_PLAIN, K_BRA, K_BRX, K_CALL, K_RETURNED, K_RET, K_EXIT, K_BARRIER, K_WARP } ptx_kind;

typedef struct ptx_warp ptx_warp;
typedef struct ptx_ins ptx_ins;
typedef void ptx_run(ptx_warp *w, const ptx_ins *i, uint32_t lanes);

/* A copy of parameters at a call: `bytes` of each lane, from the caller's frame to the callee's, or back. */
typedef struct ptx_pass {
  int32_t from, to;
  uint32_t from_bytes, to_bytes; /* of a lane, there */
} ptx_pass;

enum { VECTOR = 8 };
struct ptx_ins {
  ptx_run *run;
  int32_t guard; /* its predicate's place; -1: none */
  bool guard_not;
  uint8_t kind, type, from; /* from: the second type, of cvt and the like */
  int32_t d, a, b, c, e;    /* places of rows; below zero: in the module's constants */
  int32_t v[VECTOR];        /* of vectors' elements; NOWHERE: none is wanted */
  uint8_t n, size;          /* elements, bytes of each */
  uint8_t space, sem, scope, op;
  bool wide_d, wide_a, wide_b, is_volatile, alias, negate;
  int64_t offset;
  struct ptx_ins *target, **targets; /* a branch's; of a table, op of them */
  unsigned ntargets;
  const struct ptx_code *code; /* that it is in */
  ptx_fn *callee;
  ptx_pass *pass, *back; /* of a call */
  unsigned npass, nback;
  uint32_t line; /* of the text */
};
enum { NOWHERE = INT32_MIN };

typedef struct ptx_code {
  ptx_ins *ins;
  unsigned n;
  int32_t frame; /* bytes */
} ptx_code;

typedef struct ptx_param {
  char *name;
  size_t bytes, align, at;
  int32_t place; /* in a function's frame, lane by lane */
} ptx_param;
struct ptx_fn {
  ptx_module *m;
  char *name;
  bool entry;
  const char *body, *end; /* NULL: declared alone */
  uint32_t line;
  ptx_param *params, *results;
  unsigned nparams, nresults;
  size_t param_bytes;
  ptx_code *code; /* made when it is first called */
  bool failed;
  ptx_fn *next;
};
typedef struct ptx_variable {
  char *name;
  ptx_space space;
  uint64_t at; /* an address; of shared memory: in the window */
  size_t bytes;
  struct ptx_variable *next;
} ptx_variable;
struct ptx_module {
  char *text;
  size_t bytes;
  ptx_fn *fns;
  ptx_variable *vars;
  char *consts; /* rows, from the end down */
  size_t used_consts;
  struct {
    uint64_t value;
    int32_t at;
  } const_rows[4096];
  size_t shared; /* bytes of static shared memory, all functions together */
  pthread_mutex_t lock;
};

/* ---- running ---- */

typedef enum ptx_state { ST_NONE, ST_READY, ST_BARRIER, ST_WARP } ptx_state;
/* Threads of a warp that go together. */
typedef struct ptx_group {
  ptx_ins *pc;
  uint32_t lanes;
  int32_t fp;
  uint8_t state;
  uint32_t members; /* of the warp's barrier it is at */
} ptx_group;

struct ptx_block;
struct ptx_warp {
  char *fp;     /* of the running group */
  char *consts; /* of the module */
  struct ptx_block *block;
  ptx_grid *grid;
  char *stack;
  unsigned index, live; /* live: lanes */
  ptx_group group[LANES];
  unsigned ngroups;
  ptx_group *running;
  int patience;        /* what is left of this turn */
  uint32_t ran, tired; /* lanes that had this turn, that had one in this visit: others first */
  unsigned polls;
  unsigned favoured; /* of threads that are apart: who goes first in this visit */
  unsigned silent;   /* visits since it did what others can see */
  /* of model.c: up to when stores by the same device's other blocks are seen, and by other devices */
  uint64_t seen[2][LANES];
  struct ptx_store *first; /* that have not arrived */
  unsigned nstores;
  uint64_t pending; /* a filter of their addresses */
  struct {          /* of memory; the last that were looked for */
    uint64_t at, bytes, key;
  } area[4];
  unsigned next_area;
};
typedef struct ptx_block {
  ptx_grid *grid;
  unsigned index, at[3], nwarps, live;
  ptx_warp *warps;
  char *shared;
  struct {
    unsigned arrived, wanted, count;
    uint32_t any, all;
  } barrier[16];
  uint32_t id;  /* model.c: as of a warp, of stores that a barrier has ordered */
  uint32_t age; /* of what is kept of the host's memory: history.c */
  struct ptx_kept *kept;
  uint64_t seen[2];
  struct ptx_store *first;
  unsigned nstores;
  uint64_t pending;
} ptx_block;
enum { SEEN_GPU, SEEN_SYS };
struct ptx_grid {
  ptx_launch l;
  unsigned threads;
  ptx_block *blocks;
  unsigned nblocks;
  char *memory;
  size_t bytes;
  uint32_t random;
  bool failed, progress;
  unsigned id;
};

static inline char *ptx_row(const ptx_warp *w, int32_t at) { return (at >= 0 ? w->fp : w->consts) + at; }
#define ROW(T, at) ((T *)(void *)ptx_row(w, at))
/* For each lane l that takes part. */
#define EACH_LANE(...)                                                                                                 \
  do {                                                                                                                 \
    if (lanes == ~0u)                                                                                                  \
      for (unsigned l = 0; l < LANES; l++) {                                                                           \
        __VA_ARGS__                                                                                                    \
      }                                                                                                                \
    else                                                                                                               \
      for (uint32_t left = lanes; left; left &= left - 1) {                                                            \
        const unsigned l = (unsigned)__builtin_ctz(left);                                                              \
        __VA_ARGS__                                                                                                    \
      }                                                                                                                \
  } while (0)

/* Reports and ends the launch: a thread did what a device would not let it. */
void ptx_fail(ptx_warp *w, const ptx_ins *i, const char *what, ...) __attribute__((format(printf, 3, 4)));
uint32_t ptx_random(ptx_grid *g);
void ptx_wait(ptx_warp *w); /* its thread has polled */

/* text.c */
typedef struct ptx_token {
  const char *at;
  unsigned n;
  uint32_t line;
} ptx_token; /* n 0: the end */
typedef struct ptx_reader {
  const char *at, *end;
  uint32_t line;
  ptx_token now;
} ptx_reader;
void ptx_read(ptx_reader *r); /* to the next token */
static inline bool ptx_is(const ptx_token *t, const char *text) {
  return __builtin_strlen(text) == t->n && __builtin_memcmp(t->at, text, t->n) == 0;
}
bool ptx_accept(ptx_reader *r, const char *text);
char *ptx_text(const ptx_token *t); /* a copy */
uint64_t ptx_number(const ptx_token *t, bool *ok);
ptx_type ptx_type_of(const char *name, unsigned n);
unsigned ptx_type_bytes(ptx_type t);
ptx_fn *ptx_module_fn(ptx_module *m, const char *name, unsigned n);
ptx_variable *ptx_module_var(ptx_module *m, const char *name, unsigned n);
/* Reads `.space [.align n] .type name[n] [= {...}]` after the directive; NULL: it cannot be read. */
ptx_variable *ptx_read_variable(ptx_module *m, ptx_reader *r, ptx_space space);
/* A row of 32 times the value. */
int32_t ptx_const(ptx_module *m, uint64_t value, bool wide);

/* decode.c: under the module's lock. */
ptx_code *ptx_decode(ptx_fn *f);
void ptx_code_drop(ptx_code *c);
/* The function's instructions; NULL: it has one that is not known. */
const ptx_code *ptx_code_of(ptx_fn *f);

/* What an operation is, from its name and modifiers; in ops.c. */
typedef struct ptx_mods {
  char op[24];
  char mod[16][24];
  unsigned n;
  ptx_type type[4];
  unsigned ntypes;
} ptx_mods;
bool ptx_has(const ptx_mods *m, const char *mod);
/* Sets run and the rest from the modifiers; false: it is not known. */
bool ptx_select(const ptx_mods *m, ptx_ins *i);
bool ptx_select_memory(const ptx_mods *m, ptx_ins *i);
bool ptx_select_cvt(const ptx_mods *m, ptx_ins *i);
bool ptx_select_cvta(const ptx_mods *m, ptx_ins *i);
bool ptx_select_isspacep(const ptx_mods *m, ptx_ins *i);
bool ptx_select_alu(const ptx_mods *m, ptx_ins *i);
bool ptx_select_fence(const ptx_mods *m, ptx_ins *i);
#endif
