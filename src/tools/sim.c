/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket sim`: times of collectives on described machines. */
#include "../sim/sim.h"
#include <string.h>
#include "../base/array.h"
#include "../collectives/algorithm.h"
#include "../topo/synth.h"
#include "../topo/topo.h"
#include "inputs.h"
#include "machine.h"
#include "sim_view.h"

typedef struct options {
  const char *machine, *file;
  hk_coll coll;
  size_t begin, end, chunk;
  double factor;
  const char *algorithms, *plot, *trace;
  int protocol, channels, per_host, seed;
  bool exact, flow, graph, links, json, quantised;
  hk_overrides overrides; /* not an option: from the environment and configuration */
} options;

/* ---- what to run ---- */

static hk_status sim_add_machine(hk_sim_view *v, hk_cluster *c, const char *name, int per_host) {
  if (!HK_RESERVE_NEXT(v->sites, v->nsites)) {
    hk_cluster_free(c);
    return HK_FAIL_ERRNO("no memory for another machine");
  }
  hk_sim_site *s = &v->sites[v->nsites++];
  *s = (hk_sim_site){.cluster = c, .name = name};
  return hk_simulator_new(&s->simulator, c, per_host);
}

static int sim_open_machines(hk_sim_view *v, const options *o, int nargs, char **args) {
  hk_status rc = HK_OK;
  hk_cluster *c;
  for (int i = 0; i < nargs && rc == HK_OK; i++) {
    rc = hk_cluster_from_string(&c, args[i]);
    if (rc == HK_OK) rc = sim_add_machine(v, c, args[i], o->per_host);
  }
  if (rc == HK_OK && (o->machine || o->file || !nargs)) {
    int code = hk_tool_machine(&c, o->machine, o->file);
    if (code != HK_EXIT_OK) return code;
    rc = sim_add_machine(v, c, o->machine ? o->machine : o->file ? o->file : "this machine", o->per_host);
  }
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

/* "ring,tree", "all", or NULL: the selector's choice. */
static int sim_read_algorithms(const char *list, const hk_algorithm *const *all, const hk_algorithm **out, int capacity,
                               int *n) {
  *n = 0;
  if (!list) out[(*n)++] = NULL;
  for (int i = 0; list && !strcmp(list, "all") && all[i] && *n < capacity; i++) out[(*n)++] = all[i];
  if (!list || !strcmp(list, "all")) return HK_EXIT_OK;
  for (const char *p = list; *p;) {
    char word[24] = "";
    size_t length = strcspn(p, ",");
    snprintf(word, sizeof word, "%.*s", (int)length, p);
    int i = 0;
    while (all[i] && strcmp(all[i]->name, word)) i++;
    if (!all[i]) return hk_tool_wrong_word("--algorithm", word, hk_tool_algorithm_word);
    if (*n < capacity) out[(*n)++] = all[i];
    p += length + (p[length] == ',');
  }
  return HK_EXIT_OK;
}

enum { SERIES = 64 };

static hk_status simulate(hk_sim_view *v, const options *o, hk_sim_site *site, const hk_algorithm *algorithm,
                          bool list) {
  hk_sim_options how = {.filter = &o->overrides.filter,
                        .algorithm = algorithm ? algorithm->name : NULL,
                        .protocol = o->protocol ? o->protocol - 1 : -1,
                        .channels = o->channels,
                        .chunk = o->chunk,
                        .exact = o->exact,
                        .folded = o->flow,
                        .graph = o->graph,
                        .quantised = o->quantised,
                        .seed = (uint64_t)o->seed};
  if (list && algorithm && hk_simulator_cannot(site->simulator, algorithm, o->coll)) return HK_OK;
  int series = v->nseries++;
  for (double x = (double)o->begin; x <= (double)o->end * 1.0001; x *= o->factor) {
    size_t bytes = (size_t)x;
    bool last = x * o->factor > (double)o->end * 1.0001;
    how.timeline = o->trace && last && !series;
    hk_sim_row *row = hk_sim_view_add(v);
    if (!row) return HK_FAIL_ERRNO("no memory for the results");
    *row = (hk_sim_row){.site = site, .series = series, .bytes = bytes, .wanted = how.algorithm};
    HK_OR_RETURN(hk_sim_run(&row->result, site->simulator, o->coll, bytes, &how));
  }
  return HK_OK;
}

static hk_status sim_trace(FILE *to, const void *result) { return hk_sim_trace(result, to); }

static int sim_write_trace(const hk_sim_view *v, const char *file) {
  const hk_sim_row *row = NULL;
  for (int i = 0; i < v->nrows; i++)
    if (v->rows[i].result.nspans) row = &v->rows[i];
  if (!row)
    return hk_tool_wrong("--trace: machines of more than %d ranks are simulated at flow level, which has no timeline; "
                         "--exact gives one",
                         HK_SIM_EVENT_RANKS);
  return hk_tool_output(file, sim_trace, &row->result);
}

static int sim_run(void *into, int nargs, char **args) {
  options *o = into;
  hk_sim_view v = {.coll = o->coll};
  const hk_algorithm *algorithms[SERIES];
  int n, code;
  if (o->factor <= 1) return hk_tool_wrong("--factor must be more than 1");
  if (o->begin < 1 || o->end < o->begin) return hk_tool_wrong("--begin must be at least 1 and at most --end");
  hk_status read = hk_tool_overrides(&o->overrides);
  code = read != HK_OK ? hk_tool_failed(read) : o->plot ? hk_sim_view_can_plot(o->plot) : HK_EXIT_OK;
  if (code == HK_EXIT_OK)
    code = sim_read_algorithms(o->algorithms, hk_filter_algorithms(&o->overrides.filter), algorithms, SERIES, &n);
  if (code == HK_EXIT_OK) code = sim_open_machines(&v, o, nargs, args);
  for (int m = 0; m < v.nsites && code == HK_EXIT_OK; m++)
    for (int a = 0; a < n && code == HK_EXIT_OK; a++) {
      hk_status rc = simulate(&v, o, &v.sites[m], algorithms[a], n > 1);
      if (rc != HK_OK) code = hk_tool_failed(rc);
    }
  if (code == HK_EXIT_OK && o->json) hk_sim_view_json(&v, stdout);
  if (code == HK_EXIT_OK && !o->json) hk_sim_view_table(&v, stdout);
  if (code == HK_EXIT_OK && o->links && !o->json) hk_sim_view_links(&v, stdout);
  if (code == HK_EXIT_OK && o->plot) code = hk_sim_view_plot(&v, o->plot);
  if (code == HK_EXIT_OK && o->trace) code = sim_write_trace(&v, o->trace);
  hk_sim_view_clear(&v);
  hk_overrides_clear(&o->overrides);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_MACHINE(machine),
    HK_ROW_XML(file),
    HK_ROW_COLL(coll, "collective", "NAME", "which collective", .letter = 'c', .def = "allreduce"),
    HK_ROW_SIZE(begin, "begin", "SIZE", "the first size", .letter = 'b', .def = "1K"),
    HK_ROW_SIZE(end, "end", "SIZE", "the last size", .letter = 'e', .def = "1G"),
    HK_ROW_NUMBER(factor, "factor", "NUMBER", "from one size to the next", .def = "4"),
    HK_ROW_TEXT(algorithms, "algorithm", "LIST",
                "algorithms to compare, as 'ring,tree', or 'all'; without it what the selector takes", .letter = 'a',
                .words = hk_tool_algorithm_word),
    HK_ROW_WORD(protocol, "protocol", "NAME", "protocol of the links", .letter = 'p', .def = "auto",
                .words = hk_tool_protocol_word),
    HK_ROW_INT(channels, "channels", "N", "channels; 0: what the selector takes", .high = 64),
    HK_ROW_SIZE(chunk, "chunk", "SIZE", "bytes of a block that a wave moves; without it the library's choice"),
    HK_ROW_INT(per_host, "ranks-per-host", "N", "ranks of a host without GPUs; 0: one for each core", .high = 65535),
    HK_ROW_FLAG(exact, "exact", "event by event, however many ranks"),
    HK_ROW_FLAG(flow, "flow", "at flow level, however few ranks"),
    HK_ROW_FLAG(graph, "graph", "a replayed CUDA graph launches the kernels, not a stream"),
    HK_ROW_FLAG(quantised, "quantised", "allreduce of float32 on CPUs with 8 bits a value on links"),
    HK_ROW_INT(seed, "seed", "N", "seed of the hash by which flows choose a spine switch"),
    HK_ROW_FLAG(links, "links", "show the busiest links of the last size", .letter = 'l'),
    HK_ROW_FLAG(json, "json", "write JSON"),
    HK_ROW_FILE(plot, "plot", "FILE", "draw bandwidth and time with gnuplot: FILE.svg or FILE.png"),
    HK_ROW_FILE(trace, "trace", "FILE",
                "write the timeline of the first machine's last size, for Perfetto or chrome://tracing"),
    {0}};

const hk_tool hk_tool_sim = {
    .name = "sim",
    .about = "simulate collectives on any machine",
    .usage = "[MACHINE...]",
    .text =
        "Runs the programs of all ranks against the machine's links and shows the time, the algorithm's bandwidth and "
        "the bus bandwidth as nccl-tests defines them, for sizes from --begin to --end. Sizes are those of the larger "
        "of a rank's buffers.\n\n"
        "Machines are named in words, as for `hocket topo`, or as FILE.xml; several are compared. The parameters that "
        "change the library's choice (NCCL_ALGO, NCCL_MIN_NCHANNELS and others) have their effect here too, unless an "
        "option says otherwise. Up to 64 ranks are simulated event "
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
    .run = sim_run,
};
