/* SPDX-License-Identifier: Apache-2.0 */
/* Order between two lanes of a rank: an empty slot of a link from the rank to itself. The first lane awaits it, a later
 * one gives it. Both lanes use one channel. */
#pragma once
#include "../program/builder.h"

static inline void hk_token_give(hk_builder *b) {
  hk_operand to = hk_send_to(b, hk_builder_rank(b), 0, 0);
  hk_build_move(b, 0, &to, 1, NULL, 0);
}
static inline void hk_token_await(hk_builder *b) {
  hk_operand from = hk_recv_from(b, hk_builder_rank(b), 0, 0);
  hk_build_move(b, 0, NULL, 0, &from, 1);
}
