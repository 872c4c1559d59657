/* SPDX-License-Identifier: Apache-2.0 */
/* The GPUs that the fake libcuda.so.1 and libnvidia-ml.so.1 show.  Each library has its own `fake_gpus`, which a test
 * fills through dlsym. */
#ifndef HK_TEST_FAKE_GPUS_H
#define HK_TEST_FAKE_GPUS_H
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAKE_GPU_LIMIT = 16, FAKE_LINK_LIMIT = 18 };
typedef struct fake_gpu {
  char bus[32]; /* "00000000:1B:00.0" */
  int sm;
  int hidden;                    /* not shown by CUDA */
  int dmabuf;                    /* its memory can be a dma-buf */
  int nlinks;                    /* NVLinks that exist */
  int down;                      /* of which the first so many are down */
  char far[FAKE_LINK_LIMIT][32]; /* "switch", "hidden", "cpu", or a GPU's bus id */
  unsigned c2c_links, c2c_mbps;
  unsigned char cluster[16];
  unsigned clique;
  unsigned long long errors[2]; /* of memory: corrected, uncorrected */
} fake_gpu;
typedef struct fake_machine {
  int ngpus, fails; /* fails: the error that initialising gives */
  int no_peers;     /* the P2P status of every pair */
  char *memory;     /* what counts as memory of GPU 1 */
  unsigned long memory_bytes;
  fake_gpu gpu[FAKE_GPU_LIMIT];
} fake_machine;

/* For programs that are started with the fakes in LD_LIBRARY_PATH: HOCKET_TEST_GPUS=GPUS:SM:NVLINKS:FAR, as
 * 8:90:18:hidden. HOCKET_TEST_ECC=CORRECTED:UNCORRECTED errors, and one NVLink down, of the last GPU. */
static inline void fake_from_environment(fake_machine *m) {
  const char *text = getenv("HOCKET_TEST_GPUS");
  int n, sm, links;
  char far[32];
  if (!text || sscanf(text, "%d:%d:%d:%31s", &n, &sm, &links, far) != 4) return;
  for (int i = 0; i < n && i < FAKE_GPU_LIMIT; i++) {
    fake_gpu *g = &m->gpu[m->ngpus++];
    snprintf(g->bus, sizeof g->bus, "000000FF:%02X:00.0", i + 1);
    g->sm = sm;
    g->nlinks = links < FAKE_LINK_LIMIT ? links : FAKE_LINK_LIMIT;
    for (int k = 0; k < g->nlinks; k++) snprintf(g->far[k], sizeof g->far[k], "%s", far);
  }
  fake_gpu *last = &m->gpu[m->ngpus ? m->ngpus - 1 : 0];
  text = getenv("HOCKET_TEST_ECC");
  if (text && sscanf(text, "%llu:%llu", &last->errors[0], &last->errors[1]) == 2) last->down = 1;
}
#endif
