/* SPDX-License-Identifier: Apache-2.0 */
/**
 * An algorithm that only tests/suites/extend.sh adds: allreduce of short messages in two steps, on hosts of equally
 * many ranks (on one host, in one). H hosts of L ranks, S bytes:
 *
 *   inside   every rank sends its input to every other one of its host, S (L - 1) bytes, and adds up
 *   between  it sends the sum to the equal rank of every other host, S (H - 1) bytes, and adds up
 *
 * No algorithm of the library has these two steps, and nothing in the library was tuned for it.
 */
#include "hosts.h"

/* {the other members} <- mine; to <- the sum of all members in their order, so that all get the same bits. */
static void crossed_step(hk_builder *b, const int *member, int n, int me, hk_operand mine, hk_operand to, bool last) {
  hk_operand others[HK_HOST_FAN], all[HK_HOST_FAN + 1];
  unsigned sends = 0;
  for (int j = 1; j < n; j++) others[sends++] = hk_send_to(b, member[hk_shift(me, j, n)], 0, 0);
  for (int k = 0; k < n; k++) all[k] = k == me ? mine : hk_recv_from(b, member[k], 0, 0);
  /* Copies: what is sent is overwritten before all have read it. */
  hk_build_move(b, HK_INSTR_COPY, others, sends, &mine, 1);
  hk_build_move(b, last ? HK_INSTR_FINAL : 0, &to, 1, all, (unsigned)n);
}

static void crossed_build(hk_builder *b, const hk_build *w) {
  const hk_home p = hk_home_of(w);
  const bool far = p.hosts > 1;
  int member[HK_HOST_FAN + 1];
  hk_build_scratch(b, far);
  hk_build_lane(b);
  for (int k = 0; k < p.per; k++) member[k] = hk_home_local(&p, k);
  crossed_step(b, member, p.per, p.i, hk_in(0, 0), far ? hk_scratch(0, 0) : hk_out(0, 0), !far);
  for (int k = 0; k < p.hosts; k++) member[k] = hk_layout_rank(w->layout, k, p.i);
  if (far) crossed_step(b, member, p.hosts, p.h, hk_scratch(0, 0), hk_out(0, 0), true);
}

static const char *crossed_cannot(const hk_team *team, hk_coll coll) {
  (void)coll;
  if (team->ranks_per_host < 2 || team->least_per_host < team->ranks_per_host)
    return "needs hosts of equally many ranks, at least two";
  return team->nhosts <= HK_HOST_FAN && team->ranks_per_host <= HK_HOST_FAN ? NULL
                                                                            : "needs 255 hosts and ranks at most";
}

const hk_algorithm hk_algorithm_crossed = {
    .name = "crossed",
    .about = "all to all inside each host, then between equal ranks of all hosts; two steps, for short messages",
    .cannot = crossed_cannot,
    .build = {[HK_ALLREDUCE] = crossed_build},
};
