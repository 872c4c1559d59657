/* SPDX-License-Identifier: Apache-2.0 */
/**
 * A command of `hocket` is a file, src/tools/<name>.c, or a folder, src/tools/<name>/, that defines `const hk_tool
 * hk_tool_<name>`, and one line in commands.def. Everything about its command line is data: parsing, --help, the manual
 * page and the shells' completion are made from one table. Example:
 *
 *   typedef struct options { hk_coll coll; size_t bytes; bool json; const char *machine; } options;
 *   static const hk_tool_option rows[] = {
 *       HK_ROW_TEXT(machine, "machine", "STRING", "a machine in words, as dgx-h100", .letter = 'm'),
 *       HK_ROW_SIZE(bytes, "bytes", "SIZE", "size of the message", .def = "1M"),
 *       HK_ROW_FLAG(json, "json", "write JSON"),
 *       {0}};
 *   static int run(void *into, int nargs, char **args) { options *o = into; ...; return HK_EXIT_OK; }
 *   const hk_tool hk_tool_sim = {.name = "sim", .about = "what a machine would do", .options = rows,
 *                                .bytes = sizeof(options), .run = run, ...};
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../base/status.h"
#include "../program/operation.h"

/* Exit codes of every command. */
enum {
  HK_EXIT_OK = 0,
  HK_EXIT_FINDING = 1, /* the command ran and found a problem */
  HK_EXIT_TROUBLE = 2  /* wrong usage, or unreadable input: the command did not run */
};

typedef enum hk_option_kind {
  HK_OPTION_FLAG,   /* bool; no argument */
  HK_OPTION_INT,    /* int, from `low` to `high`; both 0: any */
  HK_OPTION_SIZE,   /* size_t; K, M, G, T mean 2^10 ... 2^40 */
  HK_OPTION_NUMBER, /* double */
  HK_OPTION_TEXT,   /* const char * */
  HK_OPTION_FILE,   /* const char *; "-": the command reads it as stdin or stdout */
  HK_OPTION_WORD,   /* int: index into `words` */
  HK_OPTION_COLL    /* hk_coll: AllReduce, allreduce, all_reduce */
} hk_option_kind;

/* The i-th of a list of words, NULL after the last. */
typedef const char *hk_tool_words(int i);

typedef struct hk_tool_option {
  char letter;                 /* 0: none */
  const char *name, *argument; /* argument: its name in the help; NULL for flags */
  const char *help, *def;      /* def: read as if the user had given it; NULL leaves the field zero */
  hk_option_kind kind;
  size_t field;         /* offset in the command's options */
  int low, high;        /* both 0: any */
  hk_tool_words *words; /* HK_OPTION_WORD: the possible words; else NULL */
} hk_tool_option;

/* A row for each kind. The command's struct is `options`, and a member of it whose type is not the kind's does not
 * compile. What a row may have besides (.letter, .def, .low, .high, .words) follows. */
#define HK_ROW_FLAG(member, name, help, ...) HK_ROW(FLAG, bool, member, name, NULL, help, __VA_ARGS__)
#define HK_ROW_INT(member, name, argument, help, ...) HK_ROW(INT, int, member, name, argument, help, __VA_ARGS__)
#define HK_ROW_SIZE(member, name, argument, help, ...) HK_ROW(SIZE, size_t, member, name, argument, help, __VA_ARGS__)
#define HK_ROW_NUMBER(member, name, argument, help, ...)                                                               \
  HK_ROW(NUMBER, double, member, name, argument, help, __VA_ARGS__)
#define HK_ROW_TEXT(member, name, argument, help, ...)                                                                 \
  HK_ROW(TEXT, const char *, member, name, argument, help, __VA_ARGS__)
#define HK_ROW_FILE(member, name, argument, help, ...)                                                                 \
  HK_ROW(FILE, const char *, member, name, argument, help, __VA_ARGS__)
#define HK_ROW_WORD(member, name, argument, help, ...) HK_ROW(WORD, int, member, name, argument, help, __VA_ARGS__)
#define HK_ROW_COLL(member, name, argument, help, ...) HK_ROW(COLL, hk_coll, member, name, argument, help, __VA_ARGS__)
#define HK_ROW(kind_, type, member, name_, argument_, help_, ...)                                                      \
  {                                                                                                                    \
    .kind = HK_OPTION_##kind_, .name = name_, .argument = argument_, .help = help_,                                    \
    .field = offsetof(options, member) + 0 * sizeof(_Generic(&((options *)0)->member, type * : 0)), __VA_ARGS__        \
  }

typedef struct hk_tool {
  const char *name, *about;      /* about: one line, lower case, no full stop; name of a part: "program check" */
  const char *usage;             /* what may follow the options: "[COLLECTIVE [SIZE]]"; may be NULL */
  const char *text;              /* paragraphs; a line that starts with a space stays as it is; may be NULL */
  const char *findings;          /* when the exit code is 1; NULL: never */
  const char *examples;          /* "command line\n  what it does\n..."; may be NULL */
  const hk_tool_option *options; /* ended by a row without a name; may be NULL */
  size_t bytes;                  /* of the struct that they fill */
  int least, most;               /* arguments besides options; most -1: no limit */
  int (*run)(void *options, int nargs, char **args);
  /* The commands of a command, ended by NULL: it has no options, arguments and `run` of its own. NULL: no parts. */
  const struct hk_tool *const *parts;
} hk_tool;

/* The i-th command, NULL after the last. */
const hk_tool *hk_tool_at(int i);
/* The part "check" of "program", NULL if there is none. */
const hk_tool *hk_tool_part(const hk_tool *t, const char *name);

/* ---- for commands ---- */

/* The parameters that this process has: a command makes no communicator that would keep them. */
const struct hk_settings *hk_tool_settings(void);
/* Prints "hocket topo: text" on stderr; returns HK_EXIT_TROUBLE. */
int hk_tool_wrong(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same for a call that failed: its message is hk_last_error(). */
int hk_tool_failed(hk_status rc);
/* "--algorithm: 'rign' is none of ring, tree; did you mean 'ring'?" */
int hk_tool_wrong_word(const char *what, const char *text, hk_tool_words *words);
/* Reads an argument that is no option, as HK_OPTION_SIZE and HK_OPTION_COLL do; prints an error and returns false if it
 * is wrong. */
bool hk_tool_size(const char *what, const char *text, size_t *out);
bool hk_tool_coll(const char *text, hk_coll *out);
/* Numbers, as "8", "2-16" or "2,4,8-12": prints an error and returns false if the list is wrong or one is not from
 * `least` to `most`; whether a number is in the list. */
bool hk_tool_check_list(const char *what, const char *list, int least, int most);
bool hk_tool_in_list(const char *list, int n);
const char *hk_tool_coll_word(int i); /* "allreduce" ... */
const char *hk_tool_algorithm_word(int i);
const char *hk_tool_protocol_word(int i); /* "auto", then the protocols */

/* ---- output ---- */

/* Calls `write` with the file, or with the standard output if path is NULL or "-". The file is replaced as a whole.
 * Returns an exit code, after printing the error. */
int hk_tool_output(const char *path, hk_status (*write)(FILE *to, const void *what), const void *what);
/* True if the file can be written; else prints the error. For commands that take long before they write. */
bool hk_tool_can_output(const char *path);

enum { HK_TOOL_WIDTH = 100 };
typedef enum hk_style {
  HK_STYLE_PLAIN,
  HK_STYLE_BOLD,
  HK_STYLE_DIM,
  HK_STYLE_RED,
  HK_STYLE_GREEN,
  HK_STYLE_YELLOW
} hk_style;
/* The escape sequence that begins a style (PLAIN ends it); "" unless `to` is a terminal and NO_COLOR is not set. */
const char *hk_tool_style(FILE *to, hk_style s);
/* Prints text in lines of at most HK_TOOL_WIDTH, each after `indent` spaces. A line that begins with spaces keeps them,
 * and is not wrapped if it fits. */
void hk_tool_wrap(FILE *to, int indent, const char *text);
/* "17.2 us", "3.1 ms"; "4 KiB", "1.5 MiB"; text needs 32 bytes and is returned. */
const char *hk_tool_time(char *text, double us);
const char *hk_tool_bytes(char *text, size_t bytes);

/* A table is filled cell by cell, row by row, then printed with columns as wide as they need. */
typedef struct hk_table hk_table;
/* One letter for each column: l left, r right, w left and wrapped (the last one). */
hk_table *hk_table_new(const char *columns);
void hk_table_cell(hk_table *t, hk_style s, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hk_table_narrow(hk_table *t); /* one space between columns instead of two */
/* A row of plain cells from a text with tabs between them. */
void hk_table_row(hk_table *t, hk_style s, const char *format, ...) __attribute__((format(printf, 3, 4)));
void hk_table_print(hk_table *t, int indent, FILE *to); /* frees it too */
