/* SPDX-License-Identifier: Apache-2.0 */
/* On which core a rank's thread runs (run.h). */
#include <sched.h>
#include "../core/comm.h"
#include "../transport/peer.h"
#include "../transport/transport.h"
#include "run.h"

void hk_run_spread(ncclComm_t c) {
  const hk_peer *own = &c->peers[c->rank];
  cpu_set_t may, one;
  int before = 0, cpu = -1;
  if (hk_wire_host_ranks(c, c->rank) < own->cores || own->cores < 2) return;
  if (sched_getaffinity(0, sizeof may, &may) != 0 || CPU_COUNT(&may) != own->cores) return; /* a launcher binds ranks */
  for (int r = 0; r < c->rank; r++) before += c->peers[r].host == own->host;
  for (int left = before % own->cores; left >= 0;) left -= CPU_ISSET(++cpu, &may) != 0;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  if (sched_setaffinity(0, sizeof one, &one) == 0) (void)sched_setaffinity(0, sizeof may, &may);
}
