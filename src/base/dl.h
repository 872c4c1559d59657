/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries that may be missing. Each is a static hk_dl: file names to try, symbols with the names of older versions
 * after the newest, and the struct of function pointers that they fill. A library is loaded at most once and stays
 * loaded, because its functions may be in use. If it is missing, one line at INFO says what does not work without
 * it. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

typedef struct hk_dl_symbol {
  const char *names[3]; /* newest version first; the first that exists is used */
  size_t offset;        /* of the function pointer in `table` */
  bool optional;        /* its pointer stays NULL if it is missing */
} hk_dl_symbol;
#define HK_DL_SYMBOL(table, member, ...)                                                                               \
  { .names = {__VA_ARGS__}, .offset = offsetof(table, member) }
#define HK_DL_OPTIONAL(table, member, ...)                                                                             \
  { .names = {__VA_ARGS__}, .offset = offsetof(table, member), .optional = true }

/* A library's functions can be one list, LIST(NEED, MAY), of NEED(type, member, arguments, names...) and the same with
 * MAY for those that are optional. The struct, which is called `api`, and its symbols are made from it. */
#define HK_DL_MEMBER(type, member, arguments, ...) type(*member) arguments;
#define HK_DL_NEED(type, member, arguments, ...) HK_DL_SYMBOL(api, member, __VA_ARGS__),
#define HK_DL_MAY(type, member, arguments, ...) HK_DL_OPTIONAL(api, member, __VA_ARGS__),

typedef struct hk_dl {
  const char *files[3]; /* tried in order, as dlopen searches */
  const char *loss;     /* what does not work without it: "NVLinks cannot be seen" */
  const hk_dl_symbol *symbols;
  size_t nsymbols;
  void *table;   /* all pointers are NULL before, and after loading failed */
  unsigned subs; /* hk_log_subsystem of the line */
  int state;     /* of hk_dl_load, as are the fields below: 0 not tried, 1 loaded, -1 missing */
  char why[200]; /* the reason, if it is missing */
  void *handle;
} hk_dl;

/* A library that is not loaded yet: the struct and the list of its symbols, and the files to try. */
#define HK_DL_LIBRARY(table_, symbols_, subs_, loss_, ...)                                                             \
  {                                                                                                                    \
    .files = {__VA_ARGS__}, .loss = (loss_), .symbols = (symbols_), .nsymbols = HK_ARRAY_LENGTH(symbols_),             \
    .table = &(table_), .subs = (subs_)                                                                                \
  }

/* A function of a library that the process has loaded, by itself or by us, and that then stays loaded; NULL: there is
 * none. Loads nothing, and costs little while the process loads nothing. */
typedef struct hk_dl_seen {
  const char *file, *symbol;
  void *found;              /* of hk_dl_look, as is the field below */
  unsigned long long loads; /* of the process, when it was last looked for */
} hk_dl_seen;
void *hk_dl_look(hk_dl_seen *s);

/* True if the library and every symbol that is not optional are there. From any thread. */
bool hk_dl_load(hk_dl *lib);
/* The same with a file that the user chose in place of lib->files; NULL or empty: none. Only the first call counts. */
bool hk_dl_load_chosen(hk_dl *lib, const char *chosen);
