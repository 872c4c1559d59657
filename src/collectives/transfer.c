/* SPDX-License-Identifier: Apache-2.0 */
/* Builds the programs of sends and receives (transfer.h). */
#include "transfer.h"
#include "../program/builder.h"

hk_status hk_transfer_build(int rank, int nranks, int peer, bool sends, hk_program **out) {
  hk_builder *b;
  hk_status rc = hk_builder_new(&b, &(hk_build){.coll = HK_SENDRECV, .rank = rank, .nranks = nranks});
  if (rc != HK_OK) return rc;
  hk_build_lane(b);
  if (sends)
    hk_build_copy(b, hk_send_to(b, peer, 0, 0), hk_in(0, 0));
  else
    hk_build_copy(b, hk_out(0, 0), hk_recv_from(b, peer, 0, 0));
  return hk_builder_finish(b, sends ? "send" : "receive", out);
}
