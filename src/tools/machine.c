/* SPDX-License-Identifier: Apache-2.0 */
/* The machine of a command, and the inputs of a communicator on it: placements, rings, prices, settings. */
#include "machine.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../base/param.h"
#include "../decide/accuracy.h"
#include "../decide/outlines.h"
#include "../program/layout.h"
#include "../run/tuner.h"
#include "../sim/sim.h"
#include "../topo/detect.h"
#include "../topo/synth.h"
#include "../topo/xml.h"

static const char *const presets[] = {
#define HK_PRESET(name, machine, about) name,
#include "../topo/synth_presets.def"
#undef HK_PRESET
};

const char *hk_tool_preset_word(int i) { return i >= 0 && (size_t)i < HK_ARRAY_LENGTH(presets) ? presets[i] : NULL; }

/* Reads XML, a folder with a recorded machine's /sys, or this machine. */
static hk_status machine_read_machine(hk_topo **out, const char *file) {
  struct stat st;
  const hk_settings *settings = hk_tool_settings();
  if (!file) return hk_topo_detect_with_file(settings, out, 0);
  if (stat(file, &st) == 0 && S_ISDIR(st.st_mode)) return hk_topo_detect(out, hk_topo_detect_order(settings), file);
  return hk_topo_read_xml(out, file, NULL, NULL);
}

int hk_tool_machine(hk_cluster **out, const char *words, const char *file) {
  *out = NULL;
  if (words && file)
    return hk_tool_wrong(
        "--machine and --file are two machines; the file with the GPUs and NVLinks of the other one is "
        "--machine '%s as %s'",
        file, words);
  hk_status rc = HK_OK;
  hk_topo *t = NULL;
  if (words) {
    HK_TRY(hk_cluster_from_string(out, words), out);
  } else {
    HK_TRY(machine_read_machine(&t, file), out);
    HK_TRY(hk_cluster_of(out, t, 1), out);
  }
out:
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

void hk_tool_remarks(const hk_topo *t, FILE *to) {
  if (!t->remarks || !t->remarks[0]) return;
  fprintf(to, "\nRemarks:\n");
  hk_tool_wrap(to, 2, t->remarks);
}

const char *hk_tool_accuracy(char *text, const hk_cluster *c, size_t first, size_t last, bool prices) {
  int n = snprintf(text, HK_ACCURACY_TEXT, "The constants are defaults, not measured (docs/simulator.md).");
  if (!hk_topo_count(c->kinds[0], HK_NODE_GPU)) return text;
  if (prices)
    n += snprintf(text + n, HK_ACCURACY_TEXT - (size_t)n, " Prices are within %d%% of simulated times.",
                  HK_PRICE_PERCENT);
  n += snprintf(text + n, HK_ACCURACY_TEXT - (size_t)n, " Of ten published times eight are");
  const int from = hk_accuracy_class(first), to = hk_accuracy_class(last);
  for (int k = from; k <= to; k++)
    n += snprintf(text + n, HK_ACCURACY_TEXT - (size_t)n, "%s %g to %g times%s %s%s", k > from ? "," : "",
                  hk_accuracies[k].low, hk_accuracies[k].high, k > from ? "" : " the simulated", hk_accuracies[k].sizes,
                  k == to ? "." : "");
  return text;
}

/* ---- the inputs of a choice ---- */

/* Ring orders of the first host; none if the search does not support the machine (too many ranks). */
static hk_status machine_find_rings(hk_inputs *w) {
  hk_status rc = HK_OK;
  const hk_topo *t = hk_cluster_host(w->cluster, w->placements[0].host);
  hk_paths *paths = NULL;
  uint32_t nodes[HK_SEARCH_RANKS];
  hk_search what = {.pattern = HK_PATTERN_RING,
                    .nodes = nodes,
                    .cross_nic = hk_cross_nic_on(&w->cluster->fabric, (hk_cross_nic)w->overrides.cross_nic),
                    .min_channels = w->filter.min_channels,
                    .max_channels = w->filter.max_channels};
  for (int r = 0; r < w->nranks && w->placements[r].host == w->placements[0].host; r++) {
    if (r == HK_SEARCH_RANKS) return HK_OK;
    nodes[what.nranks++] = w->placements[r].node;
  }
  if (what.nranks < 2 || t->nodes[nodes[0]].kind != HK_NODE_GPU) return HK_OK;
  what.network = w->placements[w->nranks - 1].host != w->placements[0].host;
  if (w->overrides.graph_file)
    HK_TRY(hk_channels_read_xml(&w->rings, w->overrides.graph_file, HK_PATTERN_RING, t, &what), out);
  if (w->rings) return HK_OK;
  HK_TRY(hk_paths_new(&paths, t, &w->overrides.paths), out);
  rc = hk_search_channels(&w->rings, paths, &what);
out:
  hk_paths_free(paths);
  return rc;
}

/* The words for one host, to which "nodes=N of" can be prepended; NULL: hosts of several kinds. */
static const char *machine_one_host(const hk_cluster *c, const char *words, const char *file) {
  const char *of = words && !strncmp(words, "nodes=", 6) ? strstr(words, " of ") : NULL;
  return c->nkinds > 1 ? NULL : of ? of + 4 : words ? words : file;
}

static int machine_take_placements(hk_inputs *w, int nranks, const char *host) {
  int hosts = w->cluster->nhosts, per_host = (nranks + hosts - 1) / hosts;
  hk_status rc = hk_cluster_placements(w->cluster, per_host, &w->placements, &w->nranks);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (nranks > w->nranks)
    return hk_tool_wrong("%d ranks, but %s has %d GPUs: name a machine with more hosts, as --machine 'nodes=%d of %s'",
                         nranks, w->cluster->name, w->nranks, (nranks * hosts + w->nranks - 1) / w->nranks,
                         host ? host : "dgx-h100");
  if (nranks) w->nranks = nranks;
  if (w->nranks <= HK_RANKS_MOST) return HK_EXIT_OK;
  return hk_tool_wrong("%s has %d ranks; %d is the most that a communicator can have", w->cluster->name, w->nranks,
                       HK_RANKS_MOST);
}

/* Applies the settings that only ranks on CPUs have, as init does. */
static void machine_heed_host_settings(hk_inputs *w) {
  hk_machine *m = &w->machine;
  if (m->cores_per_host == 0) return;
  if (!w->overrides.settings->SHM_DISABLE || m->team.nranks == 1) return;
  hk_machine_set_constants(m, false, &w->overrides.constants);
  m->team.multicast = false;
}

hk_status hk_tool_overrides(hk_overrides *o) {
  HK_OR_RETURN(hk_overrides_read(o, hk_tool_settings(), 0, 0));
  return hk_overrides_load(o, NULL, false);
}

int hk_inputs_open(hk_inputs *w, const char *words, const char *file, int nranks) {
  *w = (hk_inputs){0};
  int code = hk_tool_machine(&w->cluster, words, file);
  if (code == HK_EXIT_OK) code = machine_take_placements(w, nranks, machine_one_host(w->cluster, words, file));
  if (code != HK_EXIT_OK) return code;
  hk_status rc = HK_OK;
  HK_TRY(hk_tool_overrides(&w->overrides), out);
  w->filter = w->overrides.filter;
  HK_TRY(machine_find_rings(w), out);
  HK_TRY(hk_machine_of(&w->machine, w->cluster, w->placements, w->nranks, w->rings, &w->overrides), out);
  machine_heed_host_settings(w);
  HK_TRY(hk_layout_of(&w->layout, w->cluster, w->placements, w->nranks, w->rings), out);
  HK_TRY(hk_outlines_of(&w->machine.outlines, w->cluster, w->placements, &w->machine, w->layout, &w->overrides.paths),
         out);
  HK_TRY(hk_tuner_load(w->overrides.settings, &w->tuner), out);
  const char *plugin = w->overrides.settings->TUNER_PLUGIN;
  if (plugin && !w->tuner && strcmp(plugin, "none") != 0)
    hk_tool_wrong("NCCL_TUNER_PLUGIN=%s cannot be used, going on without (NCCL_DEBUG=WARN says why)", plugin);
  if (w->tuner && !hk_tuner_begin(w->tuner, &w->machine, 0)) {
    hk_tuner_free(w->tuner); /* as at init: a failed tuner is not used */
    w->tuner = NULL;
  }
out:
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

int hk_inputs_simulator(hk_simulator **out, const hk_inputs *w) {
  const int per_host = (w->nranks + w->cluster->nhosts - 1) / w->cluster->nhosts;
  const hk_status rc = hk_simulator_new_of(out, w->cluster, per_host, w->nranks);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

hk_status hk_inputs_choose(const hk_inputs *w, hk_coll coll, size_t bytes, hk_decision *out) {
  HK_OR_RETURN(hk_select(&w->machine, &w->filter, coll, bytes, out));
  return w->tuner && !out->note ? hk_tuner_ask(w->tuner, &w->machine, &w->filter, coll, bytes, out) : HK_OK;
}

void hk_inputs_close(hk_inputs *w) {
  hk_tuner_free(w->tuner);
  hk_overrides_clear(&w->overrides);
  hk_outlines_free(w->machine.outlines);
  hk_layout_free(w->layout);
  hk_channels_free(w->rings);
  free(w->placements);
  hk_cluster_free(w->cluster);
}

const char *hk_label(const hk_topo *t, uint32_t node, char *text) {
  const hk_node *n = &t->nodes[node];
  switch ((hk_node_kind)n->kind) {
    case HK_NODE_GPU: snprintf(text, HK_LABEL, "GPU%d", n->gpu.dev); break;
    case HK_NODE_NET: snprintf(text, HK_LABEL, "NET%d", n->net.dev); break;
    case HK_NODE_CPU: snprintf(text, HK_LABEL, "CPU%llu", (unsigned long long)n->id); break;
    case HK_NODE_NVS: snprintf(text, HK_LABEL, "NVS%llu", (unsigned long long)n->id); break;
    default: hk_bus_id_format(n->id, text); break;
  }
  return text;
}

static int machine_pci_generation(float gts) {
  static const float speeds[] = {2.5f, 5, 8, 16, 32, 64};
  for (int i = 0; i < 6; i++)
    if (fabsf(gts - speeds[i]) < 0.2f) return i + 1;
  return 0;
}

static void machine_pci_speed(float gts, int width, char *text, size_t room) {
  int generation = machine_pci_generation(gts);
  text[0] = 0;
  if (generation)
    snprintf(text, room, "gen%d x%d", generation, width);
  else if (gts > 0)
    snprintf(text, room, "%g GT/s x%d", (double)gts, width);
}

bool hk_pci_downgraded(const hk_pci_info *p) {
  return p->gts > 0 && (p->max_gts > p->gts + 0.2f || p->max_width > p->width);
}

const char *hk_pci_label(const hk_pci_info *p, char *text) {
  machine_pci_speed(p->gts, p->width, text, HK_LABEL);
  if (!hk_pci_downgraded(p)) return text;
  char best[24];
  size_t n = strlen(text);
  machine_pci_speed(p->max_gts, p->max_width, best, sizeof best);
  snprintf(text + n, HK_LABEL - n, " of %s", best);
  return text;
}

const char *hk_port_label(float mbps, char *text) {
  snprintf(text, HK_LABEL, mbps > 0 ? "%g Gb/s" : "unknown", (double)mbps / 1000);
  return text;
}

/* "8 H100" or, of several kinds, "8 GPUs"; adds ", " before it if the text is not empty. */
static void machine_add(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void machine_add(char *text, const char *format, ...) {
  size_t n = strlen(text);
  if (n && n < 254) n += (size_t)snprintf(text + n, 256 - n, ", ");
  va_list args;
  va_start(args, format);
  vsnprintf(text + n, 256 - n, format, args);
  va_end(args);
}

const char *hk_topo_summary(const hk_topo *t, char *text) {
  uint32_t gpu = t->first_of[HK_NODE_GPU], net = t->first_of[HK_NODE_NET], cpu = t->first_of[HK_NODE_CPU];
  uint32_t gpus = hk_topo_count(t, HK_NODE_GPU), nets = hk_topo_count(t, HK_NODE_NET);
  uint32_t cpus = hk_topo_count(t, HK_NODE_CPU), nvs = hk_topo_count(t, HK_NODE_NVS);
  bool same_gpus = true, same_nets = true;
  int cores = 0;
  for (uint32_t i = 0; i < gpus; i++) same_gpus &= !strcmp(t->nodes[gpu + i].name, t->nodes[gpu].name);
  for (uint32_t i = 0; i < nets; i++) same_nets &= t->nodes[net + i].net.mbps == t->nodes[net].net.mbps;
  for (uint32_t i = 0; i < cpus; i++) cores += t->nodes[cpu + i].cpu.cores;
  char speed[HK_LABEL];
  text[0] = 0;
  if (gpus)
    machine_add(text, "%u %s%s", gpus, same_gpus && t->nodes[gpu].name[0] ? t->nodes[gpu].name : "GPU",
                gpus > 1 && !(same_gpus && t->nodes[gpu].name[0]) ? "s" : "");
  if (nvs) machine_add(text, "NVSwitch");
  if (nets && same_nets)
    machine_add(text, "%u x %s network", nets, hk_port_label(t->nodes[net].net.mbps, speed));
  else if (nets)
    machine_add(text, "%u network ports", nets);
  machine_add(text, cores ? "%u NUMA node%s with %d cores" : "%u NUMA node%s", cpus, cpus == 1 ? "" : "s", cores);
  return text;
}
