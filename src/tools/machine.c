/* SPDX-License-Identifier: Apache-2.0 */
/* The machine of a command. */
#include "machine.h"
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include "../base/param.h"
#include "../sim/accuracy.h"
#include "../topo/detect.h"
#include "../topo/synth.h"
#include "../topo/topo.h"
#include "../topo/xml.h"
#include "tools.h"

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

static void machine_pci_speed(float gts, int width, char *text, size_t capacity) {
  int generation = machine_pci_generation(gts);
  text[0] = 0;
  if (generation)
    snprintf(text, capacity, "gen%d x%d", generation, width);
  else if (gts > 0)
    snprintf(text, capacity, "%g GT/s x%d", (double)gts, width);
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
