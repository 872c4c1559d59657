/* SPDX-License-Identifier: Apache-2.0 */
/* What the ranks know of each other's hosts (comm.h). */
#include "../transport/peer.h"
#include "comm.h"

bool hk_wire_near(ncclComm_t c, int peer) { return c->peers[peer].host == c->peers[c->rank].host; }

int hk_wire_host_ranks(const struct ncclComm *c, int rank) {
  int ranks = 0;
  for (int i = 0; i < c->nranks; i++) ranks += c->peers[i].host == c->peers[rank].host;
  return ranks;
}
