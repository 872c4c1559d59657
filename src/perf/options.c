/* SPDX-License-Identifier: Apache-2.0 */
/* The command line: nccl-tests' options with their letters, names and defaults, and a few more. Unlike in nccl-tests, a
 * value that cannot be read is an error and not a silent default. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "perf.h"

enum { OWN_PROCS = 1000, OWN_PLOT, OWN_LAUNCHER, OWN_PLACES, OWN_REWRITE }; /* options without a letter */

typedef enum {
  KIND_INT,
  KIND_SIZE,
  KIND_FACTOR,
  KIND_TEXT,
  KIND_OP,
  KIND_TYPE,
  KIND_ROOT,
  KIND_PLACES,
  KIND_HELP
} option_kind;

typedef struct option_row {
  int letter;
  const char *name, *argument, *help; /* help NULL: another name of the previous row */
  option_kind kind;
  size_t field; /* in perf_options */
  int low, high;
} option_row;

#define FIELD(f) offsetof(perf_options, f)
static const option_row rows[] = {
    {'t', "nthreads", "threads", "threads a process (1)", KIND_INT, FIELD(threads), 1, 4096},
    {'g', "ngpus", "ranks", "ranks a thread; on a GPU machine each has its GPU (1)", KIND_INT, FIELD(gpus), 1, 4096},
    {OWN_PROCS, "procs", "processes",
     "start this number of local processes; without it, this one or those of a launcher", KIND_INT, FIELD(procs), 1,
     4096},
    {'b', "minbytes", "size", "smallest size (32M); K, M, G mean 2^10, 2^20, 2^30", KIND_SIZE, FIELD(min_bytes), 0, 0},
    {'e', "maxbytes", "size", "largest size (32M)", KIND_SIZE, FIELD(max_bytes), 0, 0},
    {'i', "stepbytes", "size", "step between sizes (1M)", KIND_SIZE, FIELD(step_bytes), 0, 0},
    {'f', "stepfactor", "factor", "factor between sizes, in place of a step", KIND_FACTOR, FIELD(step_factor), 0,
     INT_MAX},
    {'n', "iters", "count", "timed iterations a size (20)", KIND_INT, FIELD(iters), 1, INT_MAX},
    {'w', "warmup_iters", "count", "iterations before, not timed (1)", KIND_INT, FIELD(warmup), 0, INT_MAX},
    {'m', "agg_iters", "count", "operations that each iteration puts into one group (1)", KIND_INT, FIELD(agg), 1,
     INT_MAX},
    {'N', "run_cycles", "count", "passes over all sizes; 0: endless (1)", KIND_INT, FIELD(cycles), 0, INT_MAX},
    {'p', "parallel_init", "0/1", "each thread creates its own communicators (0)", KIND_INT, FIELD(parallel_init), 0,
     1},
    {'c', "check", "count", "check every element of this number of extra iterations (1)", KIND_INT, FIELD(check), 0,
     INT_MAX},
    {'o', "op", "sum/prod/max/min/avg/mulsum/all", "reduction (sum)", KIND_OP, FIELD(op), 0, 0},
    {'d', "datatype", "type/all",
     "int8 uint8 int32 uint32 int64 uint64 half float double bfloat16 f8e4m3 f8e5m2 (float)", KIND_TYPE, FIELD(type), 0,
     0},
    {'r', "root", "rank/all", "root of broadcast, reduce, gather, scatter (0)", KIND_ROOT, FIELD(root), 0, 0},
    {'z', "blocking", "0/1/2/3",
     "wait after each operation: 1 with a barrier, 2 without; 3: wait and untimed barrier after each iteration (0)",
     KIND_INT, FIELD(blocking), 0, 3},
    {'y', "stream_null", "0/1", "1: stream NULL; 0: a stream a rank (host memory: 1, GPU: 0)", KIND_INT,
     FIELD(stream_null), 0, 1},
    {'T', "timeout", "seconds", "end with an error when one wait takes longer (never)", KIND_INT, FIELD(timeout), 0,
     INT_MAX},
    {'G', "cudagraph", "launches",
     "capture the iterations in a graph and launch it this number of times; needs a GPU (0)", KIND_INT, FIELD(graph), 0,
     INT_MAX},
    {'C', "report_cputime", "0/1", "report the time of the calls, without the wait (0)", KIND_INT, FIELD(cputime), 0,
     1},
    {'S', "report_timestamps", "0/1", "add the time of day to each row (0)", KIND_INT, FIELD(timestamps), 0, 1},
    {'J', "output_file", "file.json", "write the results as JSON too", KIND_TEXT, FIELD(json), 0, 0},
    {'a', "average", "0/1/2/3", "over ranks: 0 rank 0, 1 average, 2 minimum, 3 maximum (1)", KIND_INT, FIELD(average),
     0, 3},
    {'R', "local_register", "0/1/2",
     "buffers: 0 plain, 1 ncclMemAlloc and ncclCommRegister, 2 ncclMemAlloc and a symmetric window (0)", KIND_INT,
     FIELD(reg), 0, 2},
    {'x', "cta_policy", "0/1/2", "ncclConfig_t's CTAPolicy", KIND_INT, FIELD(cta_policy), 0, 2},
    {'M', "memory", "0/1", "report the memory in use, and the time of init (0)", KIND_INT, FIELD(memory), 0, 1},
    {'M', "memory_report", NULL, NULL, KIND_INT, FIELD(memory), 0, 1},
    {'u', "unalign", "elements", "start buffers this number of elements later (0)", KIND_INT, FIELD(unalign), 0,
     1 << 20},
    {'I', "per_iter_timing", "0/1", "time each iteration: fastest, slowest, 99th percentile, variation (0)", KIND_INT,
     FIELD(per_iter), 0, 1},
    {'K', "per_iter_skip", "count", "leave this number of first iterations out of -I's summary (0)", KIND_INT,
     FIELD(per_iter_skip), 0, INT_MAX},
    {OWN_PLACES, "places", "both/out/in", "time out of place, in place, or one after the other (both)", KIND_PLACES,
     FIELD(places), 0, 0},
    {OWN_REWRITE, "rewrite", "0/1",
     "write the input anew before each iteration, outside of the time: it is in the writer's caches only (0)", KIND_INT,
     FIELD(rewrite), 0, 1},
    {OWN_PLOT, "plot", "file.svg|file.png", "draw bandwidth and time over size (needs gnuplot)", KIND_TEXT, FIELD(plot),
     0, 0},
    {OWN_LAUNCHER, "launcher", "auto/none/ompi/pmi/slurm/torchrun", "launcher whose variables give the ranks (auto)",
     KIND_TEXT, FIELD(launcher), 0, 0},
    {'h', "help", NULL, "print this", KIND_HELP, 0, 0, 0},
};
enum { ROWS = sizeof rows / sizeof rows[0] };

static const char *const places[] = {"both", "out", "in"};

static void options_usage(FILE *f, const char *program) {
  fprintf(f, "USAGE: %s [options]\n", program);
  for (int i = 0; i < ROWS; i++) {
    const option_row *r = &rows[i];
    if (!r->help) continue;
    char left[96];
    int n = r->letter < OWN_PROCS ? snprintf(left, sizeof left, "-%c,--%s", r->letter, r->name)
                                  : snprintf(left, sizeof left, "--%s", r->name);
    if (r->argument) snprintf(left + n, sizeof left - (size_t)n, " <%s>", r->argument);
    if (strlen(left) <= 32)
      fprintf(f, "  %-32s %s\n", left, r->help);
    else
      fprintf(f, "  %s\n  %-32s %s\n", left, "", r->help);
  }
}

static void __attribute__((noreturn, format(printf, 2, 3)))
options_wrong(const perf_options *o, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fprintf(stderr, "%s: ", o->program);
  vfprintf(stderr, format, args);
  fprintf(stderr, "\nTry '%s --help'.\n", o->program);
  va_end(args);
  exit(PERF_USAGE);
}

static long long options_to_integer(const perf_options *o, const option_row *r, const char *text, long long low,
                                    long long high) {
  char *end;
  errno = 0;
  long long v = strtoll(text, &end, 0);
  if (end == text || *end || errno || v < low || v > high)
    options_wrong(o, "--%s: '%s' is not an integer from %lld to %lld", r->name, text, low, high);
  return v;
}

static size_t options_to_size(const perf_options *o, const option_row *r, const char *text) {
  char *end;
  double v = strtod(text, &end);
  bool number = end != text;
  while (*end == ' ') end++;
  int shift = *end == 'K' || *end == 'k' ? 10 : *end == 'M' || *end == 'm' ? 20 : *end == 'G' || *end == 'g' ? 30 : 0;
  if (shift) end++;
  if (shift && *end == 'i') end++;
  if (*end == 'B' || *end == 'b') end++;
  v *= (double)(1ll << shift);
  if (!number || *end || !(v >= 0) || v > ldexp(1, 62))
    options_wrong(o, "invalid size '%s' specified for '%s': a number, optionally with K, M or G", text, r->name);
  return (size_t)v;
}

static int options_to_name(const perf_options *o, const option_row *r, const char *text, const char *const *names,
                           int n) {
  if (!strcmp(text, "all")) return PERF_ALL;
  for (int i = 0; i < n; i++)
    if (!strcmp(text, names[i])) return i;
  options_wrong(o, "--%s: unknown name '%s'; see --help for the list", r->name, text);
}

static void options_apply(perf_options *o, const option_row *r, const char *text) {
  void *field = (char *)o + r->field;
  switch (r->kind) {
    case KIND_INT: *(int *)field = (int)options_to_integer(o, r, text, r->low, r->high); break;
    case KIND_FACTOR: *(size_t *)field = (size_t)options_to_integer(o, r, text, r->low, r->high); break;
    case KIND_SIZE: *(size_t *)field = options_to_size(o, r, text); break;
    case KIND_TEXT: *(const char **)field = text; break;
    case KIND_OP: *(int *)field = options_to_name(o, r, text, perf_op_names, PERF_NUM_OPS); break;
    case KIND_TYPE: *(int *)field = options_to_name(o, r, text, perf_type_names, ncclNumTypes); break;
    case KIND_ROOT:
      *(int *)field = !strcmp(text, "all") ? PERF_ALL : (int)options_to_integer(o, r, text, -1, INT_MAX);
      break;
    case KIND_PLACES:
      *(int *)field = options_to_name(o, r, text, places, (int)(sizeof places / sizeof places[0]));
      break;
    case KIND_HELP: options_usage(stdout, o->program); exit(PERF_OK);
  }
}

static bool options_ends_with(const char *text, const char *end) {
  size_t n = strlen(text), m = strlen(end);
  return n > m && !strcmp(text + n - m, end);
}

static void options_validate(perf_options *o) {
  if (o->min_bytes > o->max_bytes)
    options_wrong(o, "invalid sizes for 'minbytes' and 'maxbytes': %zu > %zu", o->min_bytes, o->max_bytes);
  if (o->step_factor <= 1 && o->step_bytes == 0 && o->min_bytes < o->max_bytes)
    options_wrong(o, "a step of 0 bytes never reaches the largest size");
  if (o->json && !options_ends_with(o->json, ".json"))
    options_wrong(o, "--output_file: '%s' does not end in .json", o->json);
  if (o->plot && !options_ends_with(o->plot, ".svg") && !options_ends_with(o->plot, ".png"))
    options_wrong(o, "--plot: '%s' ends in neither .svg nor .png", o->plot);
  if (o->graph && (o->blocking == 3 || o->rewrite))
    options_wrong(o, "%s cannot be captured in a graph (-G)", o->rewrite ? "--rewrite 1" : "-z 3");
  if (o->graph && o->per_iter) options_wrong(o, "-I times each iteration, which a graph (-G) hides");
  if (o->per_iter_skip && !o->per_iter) options_wrong(o, "-K goes with -I 1");
  if (o->per_iter_skip >= o->iters) options_wrong(o, "-K %d leaves none of %d iterations", o->per_iter_skip, o->iters);
  if (o->plot && o->places != PERF_PLACES_BOTH) options_wrong(o, "--plot draws both places: leave --places out");
  if (o->cycles == 0 && o->plot) options_wrong(o, "--plot needs an end: give -N a count");
}

/* Builds getopt's tables from the rows, so that there is one list of options. */
static void options_make_getopt_tables(struct option *longs, char *letters) {
  *letters++ = ':';
  for (int i = 0; i < ROWS; i++) {
    bool has_argument = rows[i].kind != KIND_HELP;
    longs[i] = (struct option){rows[i].name, has_argument ? required_argument : no_argument, NULL, rows[i].letter};
    if (rows[i].letter >= OWN_PROCS || !rows[i].help) continue;
    *letters++ = (char)rows[i].letter;
    if (has_argument) *letters++ = ':';
  }
  *letters = 0;
  longs[ROWS] = (struct option){NULL, 0, NULL, 0};
}

/* The operation is the name by which the program was started, through a link, or its first argument. */
static const perf_coll *options_find_operation(const char **program, int *argc, char ***argv) {
  const char *slash = strrchr(**argv, '/');
  const perf_coll *coll = perf_coll_find(*program = slash ? slash + 1 : **argv);
  if (coll) return coll;
  const char *given = *argc > 1 ? (*argv)[1] : "";
  if ((coll = perf_coll_find(given))) {
    *program = given;
    --*argc, ++*argv;
    return coll;
  }
  bool asked = !strcmp(given, "--help") || !strcmp(given, "-h");
  FILE *f = asked ? stdout : stderr;
  if (!asked && *given) fprintf(f, "%s: there is no operation '%s'\n", *program, given);
  fprintf(f,
          "USAGE: %s OPERATION [options], or start it by a link that has an operation's name. The operations are\n  ",
          *program);
  perf_coll_list(f);
  fputs("\n", f);
  exit(asked ? PERF_OK : PERF_USAGE);
}

void perf_options_parse(perf_options *o, int argc, char **argv) {
  const char *program;
  const perf_coll *coll = options_find_operation(&program, &argc, &argv);
  *o = (perf_options){.threads = 1,
                      .gpus = 1,
                      .min_bytes = 32 << 20,
                      .max_bytes = 32 << 20,
                      .step_bytes = 1 << 20,
                      .step_factor = 1,
                      .iters = 20,
                      .warmup = 1,
                      .agg = 1,
                      .cycles = 1,
                      .check = 1,
                      .stream_null = -1,
                      .average = 1,
                      .cta_policy = -1,
                      .op = ncclSum,
                      .type = ncclFloat32,
                      .launcher = "auto",
                      .coll = coll,
                      .program = program,
                      .argc = argc,
                      .argv = argv};
  struct option longs[ROWS + 1];
  char letters[2 * ROWS + 2];
  options_make_getopt_tables(longs, letters);
  for (;;) {
    int at = optind, c = getopt_long(argc, argv, letters, longs, NULL);
    if (c == -1) break;
    if (c == ':') options_wrong(o, "option '%s' needs a value", argv[at]);
    if (c == '?') options_wrong(o, "invalid option '%s'", argv[at]);
    for (int i = 0; i < ROWS; i++)
      if (rows[i].letter == c && rows[i].help) options_apply(o, &rows[i], optarg);
  }
  if (optind < argc) options_wrong(o, "unexpected argument '%s'", argv[optind]);
  if (o->coll->windows) o->reg = 2;
  options_validate(o);
}
