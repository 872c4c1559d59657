/* SPDX-License-Identifier: Apache-2.0 */
/* Order between two lanes of a rank: an empty slot of a link from the rank to itself. The first lane awaits it, a later
 * one gives it. */
#ifndef HK_COLLECTIVES_TOKEN_H
#define HK_COLLECTIVES_TOKEN_H
#include "../program/builder.h"

enum { HK_TOKEN_CHANNEL = 1 }; /* on a channel of its own */

static inline void hk_token_give(hk_builder *b) {
  hk_build_channel(b, HK_TOKEN_CHANNEL);
  hk_operand to = hk_send_to(b, hk_builder_rank(b), 0, 0);
  hk_build_move(b, 0, &to, 1, NULL, 0);
  hk_build_channel(b, 0);
}
static inline void hk_token_await(hk_builder *b) {
  hk_build_channel(b, HK_TOKEN_CHANNEL);
  hk_operand from = hk_recv_from(b, hk_builder_rank(b), 0, 0);
  hk_build_move(b, 0, NULL, 0, &from, 1);
  hk_build_channel(b, 0);
}
#endif
