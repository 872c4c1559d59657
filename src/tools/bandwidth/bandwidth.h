/* SPDX-License-Identifier: Apache-2.0 */
/* Measurements and findings of `hocket bandwidth`. Rates are in GB/s; -1: not measured. */
#ifndef HK_TOOLS_BANDWIDTH_H
#define HK_TOOLS_BANDWIDTH_H
#include "../../topo/paths.h"
#include "../tools.h"

enum { HK_BW_GPUS = 16, HK_BW_NODES = 16, HK_BW_CAUSE = 320 };

typedef enum hk_bw_memory { HK_BW_PINNED, HK_BW_PAGEABLE, HK_BW_MEMORIES } hk_bw_memory;
typedef struct hk_bw_host { /* a GPU and a NUMA node's memory */
  int gpu, node;            /* gpu: CUDA's number; node: number of the NUMA node */
  double to[HK_BW_MEMORIES], from[HK_BW_MEMORIES];
  double nominal;
  char path[8], cause[HK_BW_CAUSE]; /* "" if nothing is wrong */
  bool slow;
} hk_bw_host;
typedef struct hk_bw_pair { /* copies from `from` to `to`; equal: within the device */
  int from, to;
  double direct, both;     /* with peer access; both: the sum of both directions at once */
  double staged;           /* without peer access: the driver copies through host memory */
  double nominal, by_host; /* of the path with peer access, and without */
  bool peer, wrong;        /* peer: peer access is possible; wrong: the received data differs from the sent data */
  bool slow;
  char path[8], cause[HK_BW_CAUSE];
} hk_bw_pair;

/* Within a GPU, by the library's kernels: bytes read and written. A reduction reads two vectors and writes one. */
typedef enum hk_bw_kernel { HK_BW_COPY, HK_BW_FLOAT, HK_BW_HALF, HK_BW_BFLOAT16, HK_BW_KERNELS } hk_bw_kernel;

typedef struct hk_bw {
  size_t bytes;
  /* copies: of one measurement; floor: percent of the nominal rate below which the cause is determined */
  int copies, floor;
  int ngpus;
  char gpu_name[HK_BW_GPUS][64];
  int nhosts, npairs;
  hk_bw_host host[HK_BW_GPUS * HK_BW_NODES];
  hk_bw_pair pair[HK_BW_GPUS * HK_BW_GPUS];
  double kernel[HK_BW_GPUS][HK_BW_KERNELS];
  const hk_topo *topo; /* NULL: unknown; nominal rates are then unknown, too */
} hk_bw;

/* bandwidth.c: makes the rows: every GPU with every NUMA node, every ordered pair of GPUs. ngpus and topo are set. */
void hk_bw_lay_out(hk_bw *b);
/* measure.c: fills the rates; all else is set. Errors are printed with the driver's message. */
hk_status hk_bw_measure(hk_bw *b);
/* Only checks whether the pairs with peer access deliver the data that was sent. */
hk_status hk_bw_try_pairs(hk_bw *b);
/* kernels.c: b->kernel; -1 if the library has no kernels. */
hk_status hk_bw_run_kernels(hk_bw *b);
/* cause.c: nominal rates and paths before the measurement, causes after it. */
hk_status hk_bw_expect(hk_bw *b);
int hk_bw_judge(hk_bw *b); /* returns how many are slow or wrong */
/* view.c */
void hk_bw_print(const hk_bw *b);
void hk_bw_json(const hk_bw *b);
int hk_bw_plot(const hk_bw *b, const char *file);
#endif
