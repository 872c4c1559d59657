/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket topo`: shows the parts of a machine and the paths between them. */
#include "../../topo/topo.h"
#include "../../base/json.h"
#include "../../topo/paths.h"
#include "../../topo/synth.h"
#include "../../topo/xml.h"
#include "../machine.h"
#include "../tools.h"
#include "view.h"

typedef struct options {
  const char *machine, *file, *lint;
  bool channels, dot, json, xml, matrix, gbps, presets;
} options;

enum { MATRIX_ENDS = 40 }; /* a table with more cannot be read */

static void topo_print_fabric(const hk_cluster *c) {
  const hk_fabric *f = &c->fabric;
  char text[512];
  int n = snprintf(text, sizeof text, "%s: %d hosts", c->name, c->nhosts);
  if (c->nkinds > 1) n += snprintf(text + n, sizeof text - (size_t)n, " of %d kinds", c->nkinds);
  if (f->hosts_per_leaf <= 0)
    n += snprintf(text + n, sizeof text - (size_t)n, ". Fabric: one switch for all");
  else
    n += snprintf(text + n, sizeof text - (size_t)n,
                  ". Fabric: %d hosts a leaf%s, %d way%s between leaves%s, oversubscription %g", f->hosts_per_leaf,
                  f->rail ? " and rail" : "", f->spines, f->spines == 1 ? "" : "s",
                  f->spines > 1 ? f->adaptive ? " (adaptive)" : " (by hash)" : "", (double)f->oversub);
  snprintf(text + n, sizeof text - (size_t)n, ", %g us a switch.", (double)f->hop_us);
  hk_tool_wrap(stdout, 0, text);
  putchar('\n');
}

static int topo_print_host(const options *o, const hk_topo *t, bool network, FILE *to) {
  char summary[256];
  fprintf(to, "%s%s%s: %s\n\n", hk_tool_style(to, HK_STYLE_BOLD), t->name, hk_tool_style(to, HK_STYLE_PLAIN),
          hk_topo_summary(t, summary));
  hk_paths *p;
  hk_status rc = hk_paths_new(&p, t, NULL);
  if (rc != HK_OK) return hk_tool_failed(rc);
  if (o->channels) {
    rc = hk_view_channels(t, p, network, false, to);
    hk_paths_free(p);
    return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
  }
  if (p->n <= MATRIX_ENDS || o->matrix || o->gbps) {
    hk_view_matrix(t, p, o->gbps, to);
    fputc('\n', to);
    if (o->gbps)
      fprintf(to, "GB/s in one direction, along the best path.\n");
    else
      hk_view_legend(p, to);
  } else {
    hk_view_classes(t, p, to);
    fputc('\n', to);
    hk_view_legend(p, to);
  }
  if (!o->gbps && !o->matrix && p->n <= MATRIX_ENDS) {
    fputc('\n', to);
    hk_view_parts(t, p, to);
  }
  hk_paths_free(p);
  hk_tool_remarks(t, to);
  return HK_EXIT_OK;
}

static int topo_print_text(const options *o, const hk_cluster *c) {
  int code = HK_EXIT_OK;
  if (c->nhosts > 1) topo_print_fabric(c);
  for (int k = 0; k < c->nkinds && code == HK_EXIT_OK; k++) {
    if (k) putchar('\n');
    code = topo_print_host(o, c->kinds[k], c->nhosts > 1, stdout);
  }
  return code;
}

/* The machine's XML, or with --channels NCCL's graph XML. */
static int topo_print_xml(const options *o, const hk_cluster *c) {
  if (c->nkinds > 1)
    return hk_tool_wrong("%s has %d kinds of hosts, and the XML describes one: name one of them", c->name, c->nkinds);
  hk_status rc = HK_OK;
  hk_paths *p = NULL;
  if (o->channels) {
    HK_TRY(hk_paths_new(&p, c->kinds[0], NULL), out);
    rc = hk_view_channels(c->kinds[0], p, c->nhosts > 1, true, stdout);
  } else {
    rc = hk_topo_write_xml(c->kinds[0], stdout);
  }
out:
  hk_paths_free(p);
  return rc == HK_OK ? HK_EXIT_OK : hk_tool_failed(rc);
}

static int topo_run(void *into, int nargs, char **args) {
  const options *o = into;
  (void)nargs, (void)args;
  if (o->presets) {
    hk_synth_presets(stdout);
    return HK_EXIT_OK;
  }
  hk_json w = {.f = stdout};
  if (o->lint) return hk_topo_lint(o->lint, o->json ? &w : NULL);
  hk_cluster *c;
  int code = hk_tool_machine(&c, o->machine, o->file);
  if (code != HK_EXIT_OK) return code;
  if (o->dot) {
    hk_view_dot(c, stdout);
  } else if (o->xml) {
    code = topo_print_xml(o, c);
  } else if (o->json) {
    hk_view_json(c, &w);
    putchar('\n');
  } else {
    code = topo_print_text(o, c);
  }
  hk_cluster_free(c);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_MACHINE(machine),
    HK_ROW_XML(file),
    HK_ROW_FLAG(channels, "channels", "the rings, trees and stars that collectives use", .letter = 'c'),
    HK_ROW_FLAG(gbps, "gbps", "only the table, with bandwidths (GB/s) in place of classes"),
    HK_ROW_FLAG(matrix, "matrix", "only the table, however large"),
    HK_ROW_FLAG(dot, "dot", "write a graph for Graphviz, which draws it"),
    HK_ROW_FLAG(xml, "xml",
                "write NCCL's topology XML, for NCCL_TOPO_FILE; with --channels its graph XML, for NCCL_GRAPH_FILE"),
    HK_ROW_FILE(lint, "lint", "FILE", "report what is wrong with a topology file, line by line, and do nothing else",
                .letter = 'l'),
    HK_ROW_FLAG(json, "json", "write JSON: nodes, edges, paths"),
    HK_ROW_FLAG(presets, "presets", "list the machines that have a name"),
    {0}};

const hk_tool hk_tool_topo = {
    .name = "topo",
    .about = "show how the parts of a machine reach each other",
    .text =
        "The table has a row and a column for each GPU, network port and CPU, and shows which kind of path leads from "
        "one to the other, the shortest first: NVLink, PCIe switches, the CPU, the link between CPUs. The parts "
        "follow, with the network ports that are nearest to each GPU.\n"
        "\n"
        "A machine in words is a name (--presets lists them) or its parts, and options:\n"
        "\n"
        "  dgx-h100\n"
        "  8xa100:pcie2 cpu=2xgenoa nic=2x200\n"
        "  2xcpu cores=32 nic=1x100 net=eth\n"
        "  nodes=16 of dgx-a100 fabric=rail,fattree,oversub=2\n"
        "\n"
        "`hocket help machine` has all words, docs/topology.md the sources of the bandwidths too.",
    .findings = "--lint found an error in the file",
    .examples = "hocket topo\n"
                "  the machine at hand\n"
                "hocket topo --machine dgx-h100\n"
                "  a DGX H100\n"
                "hocket topo --machine '8xa100:pcie2 nic=2x200' --dot | dot -Tsvg > box.svg\n"
                "  a picture of a machine that you do not have yet\n"
                "hocket topo --xml > here.xml && hocket topo --lint here.xml\n"
                "  the machine at hand as a file to edit, and a check of the result",
    .options = rows,
    .bytes = sizeof(options),
    .run = topo_run,
};
