/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket bandwidth`: measures the rates of links between GPUs, and between GPUs and host memory. */
#include "bandwidth.h"
#include <stdlib.h>
#include "../../device/cuda.h"
#include "../machine.h"
#include "../sim_view.h"

typedef struct options {
  size_t bytes;
  int copies, floor;
  bool json;
  const char *plot;
} options;

void hk_bw_lay_out(hk_bw *b) {
  int nodes[HK_BW_NODES], nnodes = 0;
  for (uint32_t i = 0; b->topo && i < b->topo->nnodes && nnodes < HK_BW_NODES; i++)
    if (b->topo->nodes[i].kind == HK_NODE_CPU) nodes[nnodes++] = (int)b->topo->nodes[i].id;
  if (!nnodes) nodes[nnodes++] = 0;
  for (int g = 0; g < b->ngpus; g++) {
    for (int k = 0; k < nnodes; k++)
      b->host[b->nhosts++] = (hk_bw_host){.gpu = g, .node = nodes[k], .to = {-1, -1}, .from = {-1, -1}};
    for (int to = 0; to < b->ngpus; to++)
      b->pair[b->npairs++] = (hk_bw_pair){.from = g, .to = to, .direct = -1, .both = -1, .staged = -1};
  }
}

static int bandwidth_run(void *into, int nargs, char **args) {
  const options *o = into;
  (void)nargs, (void)args;
  hk_cluster *machine = NULL;
  int n = 0, code = HK_EXIT_OK;
  if (!hk_cuda_here(&n))
    return hk_tool_wrong("there is no GPU here, or no CUDA driver that starts: nothing to measure");
  if (o->plot) code = hk_sim_view_can_plot(o->plot);
  if (code != HK_EXIT_OK) return code;
  hk_bw *b = calloc(1, sizeof *b);
  if (!b) return hk_tool_wrong("no memory");
  b->bytes = o->bytes;
  b->copies = o->copies;
  b->floor = o->floor;
  b->ngpus = n < HK_BW_GPUS ? n : HK_BW_GPUS;
  code = hk_tool_machine(&machine, NULL, NULL);
  if (code != HK_EXIT_OK) goto out;
  b->topo = hk_cluster_host(machine, 0);
  hk_bw_lay_out(b);
  hk_status rc = hk_bw_expect(b);
  if (rc == HK_OK) rc = hk_bw_measure(b);
  if (rc == HK_OK) rc = hk_bw_run_kernels(b);
  if (rc != HK_OK) {
    code = hk_tool_failed(rc);
    goto out;
  }
  code = hk_bw_judge(b) ? HK_EXIT_FINDING : HK_EXIT_OK;
  if (o->json)
    hk_bw_json(b);
  else
    hk_bw_print(b);
  if (o->plot && hk_bw_plot(b, o->plot) != HK_EXIT_OK) code = HK_EXIT_TROUBLE;
out:
  hk_cluster_free(machine);
  free(b);
  return code;
}

static const hk_tool_option rows[] = {
    HK_ROW_SIZE(bytes, "bytes", "SIZE", "bytes of a copy", .letter = 'b', .def = "64M"),
    HK_ROW_INT(copies, "copies", "N", "copies of a measurement; the fastest of three counts", .letter = 'n', .def = "8",
               .low = 1, .high = 10000),
    HK_ROW_INT(floor, "floor", "PERCENT",
               "below this part of a link's nominal rate it counts as slow, and a cause is looked for", .def = "75",
               .high = 100000),
    HK_ROW_FLAG(json, "json", "write JSON"),
    HK_ROW_FILE(plot, "plot", "FILE", "draw the rates with gnuplot: FILE.svg or FILE.png"),
    {0}};

const hk_tool hk_tool_bandwidth = {
    .name = "bandwidth",
    .about = "measure the links between GPUs and host memory, and say why one is slow",
    .text =
        "Copies with the driver's copy engines: between every GPU and the memory of every NUMA node, pinned and "
        "pageable; between every two GPUs with peer access (P2P), one way and both ways at once, and without. Data "
        "that arrives by peer access is compared with what was sent: some machines offer it and corrupt data. If the "
        "library has kernels for GPUs, also measures how fast these copy and add within each GPU: bytes read and "
        "written.\n"
        "Rates are in GB/s (1e9 bytes). The nominal rate is that of the slowest link of the path, after the link's own "
        "overhead; within a GPU it is that of its memory, which a copy both reads and writes.",
    .findings = "a link is slower than --floor says, or P2P delivers wrong data",
    .examples = "hocket bandwidth\n  the table\n"
                "hocket bandwidth --json > links.json\n  for scripts\n"
                "hocket bandwidth --plot links.svg\n  a picture\n",
    .options = rows,
    .bytes = sizeof(options),
    .run = bandwidth_run};
