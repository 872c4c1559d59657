/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that may or may not be there.  Each is a static hk_dl: file names to try, symbols with the names of older
 * versions behind the newest, and the struct of function pointers that they fill.  A library is loaded at most once and
 * stays loaded, as its functions may be in use by then; what is off without it is said once, at INFO. */
#ifndef HK_BASE_DL_H
#define HK_BASE_DL_H
#include <stdbool.h>
#include <stddef.h>

typedef struct hk_dl_symbol {
  const char *names[3]; /* newest version first; the first that is there is taken */
  size_t offset;        /* of the function pointer in `table` */
  bool optional;        /* its pointer stays NULL where it is missing */
} hk_dl_symbol;
#define HK_DL_SYMBOL(table, member, ...)                                                                               \
  { .names = {__VA_ARGS__}, .offset = offsetof(table, member) }
#define HK_DL_OPTIONAL(table, member, ...)                                                                             \
  { .names = {__VA_ARGS__}, .offset = offsetof(table, member), .optional = true }

typedef struct hk_dl {
  const char *files[3]; /* tried in order, as dlopen searches */
  const char *loss;     /* what is off without it: "NVLinks cannot be seen" */
  const hk_dl_symbol *symbols;
  size_t nsymbols;
  void *table;   /* all pointers NULL before and, where loading fails, after */
  unsigned subs; /* hk_log_subsystem of the line */
  int state;     /* hk_dl_load's, as is the rest: 0 untried, 1 there, -1 not */
  char why[200]; /* in words where it is not there */
  void *handle;
} hk_dl;

/* True where the library and every symbol that is not optional are there.  From any thread. */
bool hk_dl_load(hk_dl *lib);
#endif
