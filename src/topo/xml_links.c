/* SPDX-License-Identifier: Apache-2.0 */
/* NVLinks, xGMI and C2C in a topology's XML: makes links between nodes from the rows at GPUs. */
#include <stdlib.h>
#include <string.h>
#include "../base/array.h"
#include "facts.h"
#include "xml_build.h"

typedef hk_xml_reader reader;
typedef struct hk_xml_link link_row;

void hk_xml_take_link(reader *b, const hk_xml_node *xml, uint32_t gpu, uint32_t cpu) {
  if (!HK_RESERVE(b->rows, b->cap, b->nrows + 1)) {
    b->rc = HK_FAIL_ERRNO("no memory for %u NVLinks", b->nrows + 1);
    return;
  }
  b->rows[b->nrows] = (link_row){.xml = xml,
                                 .gpu = gpu,
                                 .cpu = cpu,
                                 .peer = UINT32_MAX,
                                 .gbps = -1,
                                 .us = -1,
                                 .order = b->nrows,
                                 .bus = b->add.bus};
  b->nrows++;
}

static void xml_links_find_peer(reader *b, link_row *row) {
  const char *target = hk_xml_get(row->xml, "target"), *name = row->xml->name;
  uint64_t class_code = 0x068000, id = 0;
  bool classed = hk_xml_hex(row->xml, "tclass", 0xffffff, &class_code);
  if (!hk_xml_int(row->xml, "count", true, 1, 1024, &row->count)) return;
  if (!target || !hk_bus_id_parse(target, &id)) {
    hk_xml_say(row->xml, true, "<%s> needs a target, the PCI address of the other end", name);
    return;
  }
  uint32_t gpu = hk_topo_find(b->t, HK_NODE_GPU, id + row->bus); /* of the same host, or of another one */
  if (gpu == UINT32_MAX) gpu = hk_topo_find(b->t, HK_NODE_GPU, id);
  if (gpu == row->gpu) /* Azure's file for NC A100 v4 has them */
    hk_xml_say(row->xml, false, "<%s> of a GPU to itself: left out", name);
  else if (gpu != UINT32_MAX)
    row->peer = gpu;
  else if (class_code == 0x068001)
    row->peer = row->cpu; /* POWER */
  else if (class_code >> 8 == 0x0680) {
    if (!classed) hk_xml_say(row->xml, false, "<%s> without tclass counts as one to an NVSwitch", name);
    if (b->nvs == UINT32_MAX && b->rc == HK_OK) b->rc = hk_topo_add(b->t, HK_NODE_NVS, 0, &b->nvs);
    row->peer = b->nvs;
  } else {
    hk_xml_say(row->xml, false, "<%s> to %.40s, which is not in this file: left out", name, target);
  }
}

/* Sorts rows between the same two ends side by side, in the file's order. */
static int xml_links_by_ends(const void *a, const void *b) {
  const link_row *x = a, *y = b;
  uint32_t xl = x->gpu < x->peer ? x->gpu : x->peer, xh = x->gpu ^ x->peer ^ xl;
  uint32_t yl = y->gpu < y->peer ? y->gpu : y->peer, yh = y->gpu ^ y->peer ^ yl;
  if (xl != yl) return xl < yl ? -1 : 1;
  if (xh != yh) return xh < yh ? -1 : 1;
  return x->order < y->order ? -1 : 1;
}

/* Joins all rows between two ends, in both directions: the link is added once, and counts are added before bandwidths
 * are. */
static void xml_links_join_rows(reader *b, const link_row *row, uint32_t n) {
  long there = 0, back = 0;
  const hk_node *gpu = &b->t->nodes[row->gpu], *peer = &b->t->nodes[row->peer];
  float gbps = row->gbps, us = row->us;
  for (uint32_t i = 0; i < n; i++) {
    if (row[i].gpu == row->gpu)
      there += row[i].count;
    else
      back += row[i].count;
    if (i && row[i].gpu == row->gpu) gbps = gbps >= 0 && row[i].gbps >= 0 ? gbps + row[i].gbps : -1;
  }
  if (peer->kind == HK_NODE_GPU && there != back) {
    char from[HK_NODE_LABEL], to[HK_NODE_LABEL];
    hk_node_label(gpu, from);
    hk_node_label(peer, to);
    hk_xml_say(row->xml, false, "%s lists %ld links to %s, which lists %ld back; the larger number counts", from, there,
               to, back);
  }
  long count = there > back ? there : back;
  if (gbps < 0 && !(hk_nvlink_gbps(gpu->gpu.sm) > 0))
    hk_xml_say(row->xml, false, "links of a GPU whose sm is unknown or has none count as 20 GB/s each");
  if (gbps < 0) gbps = hk_xml_nvlink_gbps(gpu->gpu.sm, (unsigned)count);
  if (us < 0) us = peer->kind == HK_NODE_NVS ? HK_SWITCH_LINK_US : hk_link_us(HK_EDGE_NVLINK);
  hk_xml_join(b, row->gpu, row->peer, HK_EDGE_NVLINK, (unsigned)count, gbps, us);
}

static void xml_links_read_c2c(reader *b, const link_row *row) {
  long bw = 0, count = 0;
  float gbps = row->gbps, us = row->us >= 0 ? row->us : hk_link_us(HK_EDGE_C2C);
  bool given = hk_xml_int(row->xml, "bw", true, 1, 100000000, &bw);
  if (!hk_xml_int(row->xml, "count", true, 1, 1024, &count) || !given) return;
  hk_xml_join(b, row->cpu, row->gpu, HK_EDGE_C2C, (unsigned)count, gbps >= 0 ? gbps : (float)bw * (float)count / 1000,
              us);
}

static int xml_links_by_number(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }

/* A GPU with fewer links to the switch than most have, or with none where others have some: links may be missing. */
static void xml_links_compare_gpus(reader *b) {
  const hk_topo *t = b->t;
  const bool switched = b->nvs != UINT32_MAX;
  int count[HK_TOPO_NODES] = {0}, sorted[HK_TOPO_NODES], n = 0;
  for (uint32_t i = 0; i < t->nedges; i++)
    if (t->edges[i].kind == HK_EDGE_NVLINK && (!switched || t->edges[i].to == b->nvs))
      count[t->edges[i].from] += t->edges[i].count;
  for (uint32_t i = 0; i < t->nnodes; i++)
    if (t->nodes[i].kind == HK_NODE_GPU) sorted[n++] = count[i];
  if (!n) return;
  qsort(sorted, (size_t)n, sizeof *sorted, xml_links_by_number);
  const int usual = sorted[n / 2] ? sorted[n / 2] : sorted[n - 1];
  for (uint32_t i = 0; i < t->nnodes; i++) {
    char name[HK_NODE_LABEL];
    if (t->nodes[i].kind != HK_NODE_GPU || count[i] >= usual || (!switched && count[i])) continue;
    hk_node_label(&t->nodes[i], name);
    hk_xml_say_at(b->r, 1, 1, false, "%s has %d links%s, and others have %d: links may be missing", name, count[i],
                  switched ? " to the NVSwitch" : "", usual);
  }
}

void hk_xml_join_links(reader *b) {
  for (uint32_t i = 0; i < b->nrows; i++) {
    hk_xml_own_figures(b->rows[i].xml, &b->rows[i].gbps, &b->rows[i].us);
    if (strcmp(b->rows[i].xml->name, "c2c"))
      xml_links_find_peer(b, &b->rows[i]);
    else
      xml_links_read_c2c(b, &b->rows[i]);
  }
  if (b->nrows) qsort(b->rows, b->nrows, sizeof *b->rows, xml_links_by_ends);
  for (uint32_t i = 0, n; i < b->nrows && b->rc == HK_OK; i += n) {
    const link_row *row = &b->rows[i];
    for (n = 1; i + n < b->nrows && (row[n].gpu == row->gpu ? row[n].peer == row->peer
                                                            : row[n].gpu == row->peer && row[n].peer == row->gpu);)
      n++;
    if (row->peer != UINT32_MAX) xml_links_join_rows(b, row, n);
  }
  if (b->rc == HK_OK) xml_links_compare_gpus(b);
}
