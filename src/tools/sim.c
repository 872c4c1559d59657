/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket sim`: how long collectives take on machines that you may not have. */
#include "../sim/sim.h"
#include <stdlib.h>
#include <string.h>
#include "../collectives/algorithm.h"
#include "machine.h"
#include "sim_view.h"

typedef struct options {
  const char *machine, *file;
  hk_coll coll;
  size_t begin, end, chunk;
  double factor;
  const char *algorithms, *plot, *trace;
  int protocol, channels, per_host, seed;
  bool exact, flow, links, json;
} options;

static const char *protocol_word(int i) {
  static const char *const words[] = {"auto", "Simple", "LL", "LL128", NULL};
  return words[i];
}

/* ---- what to run ---- */

static hk_status add_machine(hk_sim_view *v, hk_cluster *c, const char *name, int per_host) {
  hk_sim_site *grown = realloc(v->sites, sizeof *grown * (size_t)(v->nsites + 1));
  if (!grown) {
    hk_cluster_free(c);
    return HK_FAIL_ERRNO("no memory for another machine");
  }
  v->sites = grown;
  hk_sim_site *s = &v->sites[v->nsites++];
  *s = (hk_sim_site){.cluster = c, .name = name};
  return hk_simulator_new(&s->simulator, c, per_host);
}

static int open_machines(hk_sim_view *v, const options *o, int nargs, char **args) {
  hk_status rc = HK_OK;
  hk_cluster *c;
  for (int i = 0; i < nargs && rc == HK_OK; i++) {
    rc = hk_cluster_from_string(&c, args[i]);
    if (rc == HK_OK) rc = add_machine(v, c, args[i], o->per_host);
  }
  if (rc == HK_OK && (o->machine || o->file || !nargs)) {
    int code = hk_tool_machine(&c, o->machine, o->file);
    if (code != HK_EXIT_OK) return code;
    rc = add_machine(v, c, o->machine ? o->machine : o->file ? o->file : "this machine", o->per_host);
  }
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

/* "ring,tree", "all", or NULL: what the selector takes. */
static int read_algorithms(const char *list, const char **out, int room, int *n) {
  *n = 0;
  if (!list) out[(*n)++] = NULL;
  for (int i = 0; list && !strcmp(list, "all") && hk_algorithms[i] && *n < room; i++)
    out[(*n)++] = hk_algorithms[i]->name;
  if (!list || !strcmp(list, "all")) return HK_EXIT_OK;
  for (const char *p = list; *p;) {
    char word[24] = "";
    size_t length = strcspn(p, ",");
    snprintf(word, sizeof word, "%.*s", (int)length, p);
    const hk_algorithm *a = hk_algorithm_by_name(word);
    if (!a) return hk_tool_wrong_word("--algorithm", word, hk_tool_algorithm_word);
    if (*n < room) out[(*n)++] = a->name;
    p += length + (p[length] == ',');
  }
  return HK_EXIT_OK;
}

enum { SERIES = 64 };

static hk_status simulate(hk_sim_view *v, const options *o, hk_sim_site *site, const char *algorithm, bool list) {
  hk_sim_options how = {.algorithm = algorithm,
                        .protocol = o->protocol ? o->protocol - 1 : -1,
                        .channels = o->channels,
                        .chunk = o->chunk,
                        .exact = o->exact,
                        .folded = o->flow,
                        .seed = (uint64_t)o->seed};
  if (list && algorithm && hk_simulator_cannot(site->simulator, hk_algorithm_by_name(algorithm), o->coll)) return HK_OK;
  int series = v->nseries++;
  for (double x = (double)o->begin; x <= (double)o->end * 1.0001; x *= o->factor) {
    size_t bytes = (size_t)x;
    bool last = x * o->factor > (double)o->end * 1.0001;
    how.timeline = o->trace && last && !series;
    hk_sim_row *row = hk_sim_view_add(v);
    if (!row) return HK_FAIL_ERRNO("no memory for the results");
    *row = (hk_sim_row){.site = site, .series = series, .bytes = bytes, .wanted = algorithm};
    HK_OR_RETURN(hk_sim_run(&row->result, site->simulator, o->coll, bytes, &how));
  }
  return HK_OK;
}

static int write_trace(const hk_sim_view *v, const char *file) {
  const hk_sim_row *row = NULL;
  for (int i = 0; i < v->nrows; i++)
    if (v->rows[i].result.nspans) row = &v->rows[i];
  if (!row)
    return hk_tool_wrong("--trace: machines of more than %d ranks are simulated at flow level, which has no timeline; "
                         "--exact gives one",
                         HK_SIM_EVENT_RANKS);
  FILE *to = !strcmp(file, "-") ? stdout : fopen(file, "w");
  if (!to) return hk_tool_wrong("--trace: %s cannot be written", file);
  hk_status rc = hk_sim_trace(&row->result, to);
  if (to != stdout && fclose(to) && rc == HK_OK) return hk_tool_wrong("--trace: %s cannot be written", file);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

static int run(void *into, int nargs, char **args) {
  options *o = into;
  hk_sim_view v = {.coll = o->coll};
  const char *algorithms[SERIES];
  int n, code;
  if (o->factor <= 1) return hk_tool_wrong("--factor must be more than 1");
  if (o->begin < 1 || o->end < o->begin) return hk_tool_wrong("--begin must be at least 1 and at most --end");
  code = read_algorithms(o->algorithms, algorithms, SERIES, &n);
  if (code != HK_EXIT_OK) return code;
  code = o->plot ? hk_sim_view_can_plot(o->plot) : HK_EXIT_OK;
  if (code == HK_EXIT_OK) code = open_machines(&v, o, nargs, args);
  for (int m = 0; m < v.nsites && code == HK_EXIT_OK; m++)
    for (int a = 0; a < n && code == HK_EXIT_OK; a++) {
      hk_status rc = simulate(&v, o, &v.sites[m], algorithms[a], n > 1);
      if (rc != HK_OK) code = hk_tool_failed(rc);
    }
  if (code == HK_EXIT_OK && o->json) hk_sim_view_json(&v, stdout);
  if (code == HK_EXIT_OK && !o->json) hk_sim_view_table(&v, stdout);
  if (code == HK_EXIT_OK && o->links && !o->json) hk_sim_view_links(&v, stdout);
  if (code == HK_EXIT_OK && o->plot) code = hk_sim_view_plot(&v, o->plot);
  if (code == HK_EXIT_OK && o->trace) code = write_trace(&v, o->trace);
  hk_sim_view_clear(&v);
  return code;
}

#define FIELD(member) .field = offsetof(options, member)
static const hk_tool_option rows[] = {
    HK_OPTION_MACHINE(options, machine),
    HK_OPTION_XML(options, file),
    {.letter = 'c',
     .name = "collective",
     .argument = "NAME",
     .help = "which collective",
     .def = "allreduce",
     .kind = HK_OPTION_COLL,
     FIELD(coll)},
    {.letter = 'b',
     .name = "begin",
     .argument = "SIZE",
     .help = "the first size",
     .def = "1K",
     .kind = HK_OPTION_SIZE,
     FIELD(begin)},
    {.letter = 'e',
     .name = "end",
     .argument = "SIZE",
     .help = "the last size",
     .def = "1G",
     .kind = HK_OPTION_SIZE,
     FIELD(end)},
    {.name = "factor",
     .argument = "NUMBER",
     .help = "from one size to the next",
     .def = "4",
     .kind = HK_OPTION_NUMBER,
     FIELD(factor)},
    {.letter = 'a',
     .name = "algorithm",
     .argument = "LIST",
     .help = "algorithms to compare, as 'ring,tree', or 'all'; without it what the selector takes",
     .kind = HK_OPTION_TEXT,
     FIELD(algorithms),
     .words = hk_tool_algorithm_word},
    {.letter = 'p',
     .name = "protocol",
     .argument = "NAME",
     .help = "protocol of the links",
     .def = "auto",
     .kind = HK_OPTION_WORD,
     FIELD(protocol),
     .words = protocol_word},
    {.name = "channels",
     .argument = "N",
     .help = "channels; 0: what the selector takes",
     .kind = HK_OPTION_INT,
     FIELD(channels),
     .low = 0,
     .high = 64},
    {.name = "chunk",
     .argument = "SIZE",
     .help = "bytes of a block that a wave moves; without it the library's choice",
     .kind = HK_OPTION_SIZE,
     FIELD(chunk)},
    {.name = "ranks-per-host",
     .argument = "N",
     .help = "ranks of a host without GPUs; 0: one for each core",
     .kind = HK_OPTION_INT,
     FIELD(per_host),
     .low = 0,
     .high = 65535},
    {.name = "exact", .help = "event by event, however many ranks", FIELD(exact)},
    {.name = "flow", .help = "at flow level, however few ranks", FIELD(flow)},
    {.name = "seed",
     .argument = "N",
     .help = "seed of the hash by which flows choose a spine switch",
     .kind = HK_OPTION_INT,
     FIELD(seed)},
    {.letter = 'l', .name = "links", .help = "show the busiest links of the last size", FIELD(links)},
    {.name = "json", .help = "write JSON", FIELD(json)},
    {.name = "plot",
     .argument = "FILE",
     .help = "draw bandwidth and time with gnuplot: FILE.svg or FILE.png",
     .kind = HK_OPTION_FILE,
     FIELD(plot)},
    {.name = "trace",
     .argument = "FILE",
     .help = "write the timeline of the first machine's last size, for Perfetto or chrome://tracing",
     .kind = HK_OPTION_FILE,
     FIELD(trace)},
    {0}};

const hk_tool hk_tool_sim = {
    .name = "sim",
    .about = "simulate collectives on any machine",
    .usage = "[MACHINE...]",
    .text =
        "Runs the programs of all ranks against the machine's links and shows the time, the algorithm's bandwidth and "
        "the bus bandwidth as nccl-tests defines them, for sizes from --begin to --end. Sizes are those of the larger "
        "of a rank's buffers.\n\n"
        "Machines are named in words, as for `hocket topo`; several are compared. Up to 64 ranks are simulated event "
        "by event, more at flow level. docs/simulator.md describes the model, its constants and its error.",
    .examples =
        "hocket sim dgx-h100\n  an allreduce on 8 H100\n"
        "hocket sim -a ring,nvls -b 1M dgx-h100 --plot rings.svg\n  two algorithms in one picture\n"
        "hocket sim -b 1G 'nodes=2048 of dgx-h100 fabric=rail,fattree'\n  16384 GPUs\n"
        "hocket sim -c alltoall -b 64M -e 64M --channels 2 -l 'nodes=4 of dgx-h100 fabric=fattree,oversub=2,leaf=2'\n"
        "  which links are busiest\n",
    .options = rows,
    .bytes = sizeof(options),
    .most = -1,
    .words = hk_tool_preset_word,
    .run = run,
};
