/* SPDX-License-Identifier: Apache-2.0 */
/* Between the files that decode functions. */
#ifndef HK_PTXEMU_DECODE_H
#define HK_PTXEMU_DECODE_H
#include "ptx.h"

enum { MAX_SYMBOLS = 4096, MAX_TARGETS = 256 };
typedef enum symbol_kind { SYM_REG, SYM_PARAM, SYM_LOCAL, SYM_KERNEL_PARAM } symbol_kind;
typedef struct symbol {
  symbol_kind kind;
  const char *name;
  unsigned n, count; /* count: of registers with numbers; 0: a single name */
  bool pred, wide;
  int32_t place, stride;
  size_t bytes;
} symbol;
typedef enum operand_kind { O_NONE, O_REG, O_NUMBER, O_ADDRESS, O_VECTOR, O_SYMBOL, O_NAME, O_SINK } operand_kind;
typedef struct operand {
  operand_kind kind;
  int32_t place, also; /* also: of `d|p` */
  bool wide, negate, single, fraction;
  uint64_t value;
  int64_t offset;
  const symbol *symbol;
  ptx_token name;
  unsigned n;
  struct operand *parts;
} operand;
typedef struct ptx_label {
  ptx_token name;
  uint32_t at;
} ptx_label;
typedef struct ptx_table {
  ptx_token name;
  unsigned n;
  ptx_token target[MAX_TARGETS];
  struct ptx_table *next;
} ptx_table;
typedef struct decoder {
  ptx_fn *f;
  ptx_code *code;
  unsigned capacity, line;
  ptx_token op;
  unsigned nsymbols;
  symbol symbols[MAX_SYMBOLS];
  ptx_label *labels, *uses;
  unsigned nlabels, nuses, labels_capacity, uses_capacity;
  ptx_table *tables;
} decoder;

ptx_ins *ptx_add_ins(decoder *d);
int32_t ptx_source(decoder *d, const operand *o, ptx_type type);
bool ptx_place_memory(decoder *d, const ptx_mods *m, ptx_ins *i, operand *o, unsigned n);
bool ptx_place_mov(decoder *d, ptx_ins *i, operand *o, unsigned n);
/* link.c */
void ptx_label_here(decoder *d, const ptx_token *name);
void ptx_label_use(decoder *d, uint32_t ins, const ptx_token *name);
ptx_table *ptx_add_table(decoder *d, const ptx_token *label);
bool ptx_link(decoder *d);
void ptx_decoder_drop(decoder *d);
#endif
