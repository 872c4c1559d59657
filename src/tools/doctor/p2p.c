/* SPDX-License-Identifier: Apache-2.0 */
/* Checks whether GPUs with peer access deliver the data that was sent: some machines offer peer access and corrupt
 * data. */
#include <stdlib.h>
#include "../../device/cuda.h"
#include "../bandwidth/bandwidth.h"
#include "doctor.h"

enum { TRIED_BYTES = 1 << 20 }; /* of each pair: every page and every line of a page has another pattern */

static void p2p_judge(hk_doctor *d, const hk_bw *b) {
  int pairs = 0, peers = 0, wrong = 0;
  for (int i = 0; i < b->npairs; i++) {
    const hk_bw_pair *p = &b->pair[i];
    pairs += p->from != p->to;
    peers += p->peer;
    wrong += p->wrong;
    if (p->wrong)
      hk_doctor_say(d, HK_DOC_PROBLEM, "NCCL_P2P_DISABLE=1; then turn ACS and the IOMMU off in the firmware",
                    "GPU %d writes other data into GPU %d's memory than was sent (path %s)", p->from, p->to,
                    p->path[0] ? p->path : "unknown");
  }
  if (peers < pairs)
    hk_doctor_say(d, HK_DOC_NOTE, "hocket topo; nvidia-smi topo -p2p w",
                  "%d of %d pairs of GPUs have no peer access: their traffic goes through host memory", pairs - peers,
                  pairs);
  if (peers > wrong)
    hk_doctor_say(d, HK_DOC_OK, NULL, "%d pairs of GPUs write to each other's memory, and 1 MiB arrived unchanged",
                  peers - wrong);
}

void hk_doctor_p2p(hk_doctor *d) {
  int n = 0;
  if (!d->live || !d->topo || !hk_cuda_here(&n) || n < 2) return;
  hk_bw *b = calloc(1, sizeof *b);
  if (!b) return;
  b->bytes = TRIED_BYTES;
  b->ngpus = n < HK_BW_GPUS ? n : HK_BW_GPUS;
  b->topo = d->topo;
  hk_bw_lay_out(b);
  hk_status rc = hk_bw_expect(b);
  if (rc == HK_OK) rc = hk_bw_try_pairs(b);
  if (rc == HK_OK)
    p2p_judge(d, b);
  else
    hk_doctor_say(d, HK_DOC_PROBLEM, "nvidia-smi; dmesg | grep -i nvidia",
                  "copies between GPUs cannot be tried: %.400s", hk_last_error());
  free(b);
}
