/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the verbs provider over the fake libibverbs.so.1: ranks that are threads or of this thread, and a
 * connection to which a test says what has happened and what time it is. */
#ifndef HK_TESTS_IB_H
#define HK_TESTS_IB_H
#include "../../src/transport/net/ib/ib_port.h"
#include "../../src/transport/net/ib/ib_state.h"
#include "fake_rdma.h"
#include "net_streams.h"
#include "suite.h"

/* ---- Ranks ---- */

extern fake_verbs_state *verbs;

void ib_begin(int devices);
/* Two ranks; `before` is called before each, to set what it is to find. */
net_world *ib_world(uint32_t nslots, size_t slot_bytes);
net_world *ib_world_of(uint32_t nslots, size_t slot_bytes, void (*before)(int rank));
/* Links and ranks end, and the machine looks for what is left over. After each test, or before. */
void ib_end(void);
#define ib_main(name, ...) suite_main(name, .teardown = ib_end, __VA_ARGS__)

void ib_make_streams(net_world *w, stream t[2], unsigned count, uint32_t most);
void ib_run_streams(net_world *w, unsigned count, uint32_t most);

/* Writes wrong values behind the last used element of each list, so that a read past the end shows. */
void ib_spoil_rest(hk_ib_conn *c);

/* One way from rank 0 to rank 1, both of this thread. */
void ib_make_way(net_world *w, hk_link **send, hk_link **recv);

void ib_pass_on(net_world *w, hk_link *send, hk_link *recv, unsigned number);

/* Sends a message from the one end to the other, and compares it; the second fills it with bytes of that value. */
void ib_carry(net_world *w, hk_link *send, hk_link *recv, uint32_t bytes);
void ib_carry_filled(net_world *w, hk_link *send, hk_link *recv, uint32_t bytes, char fill);

void ib_pull_cable(unsigned i);

/* ---- A bench ---- */

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)

typedef struct bench {
  net_world *w;
  hk_link *send, *recv;
  hk_ib_conn *c, *peer; /* of rank 0, which dials, and of rank 1 */
} bench;

hk_ib_conn *bench_conn(const hk_link *l);

bench bench_open(int devices); /* it ends with ib_end: nothing is waited for */

/* The next message on the control connection that this rank's peer has sent. */
hk_ib_msg bench_message_for(const hk_ib_conn *c);
void bench_no_message_for(const hk_ib_conn *c);

/* Rank's peer sends it a message, as far as `bytes` of it, and the rank looks for it. */
hk_status bench_hear(hk_ib_conn *to, const hk_ib_conn *from, hk_ib_msg m, size_t bytes);
/* With what all messages have. */
hk_ib_msg bench_message_of(const hk_ib_conn *c, hk_ib_kind kind);

/* ---- Invented ports with the GIDs of a card ---- */

hk_ib_gid invented_gid(int index, hk_ib_gid_kind kind, const char *address, int prefix);

int invented_gids(hk_ib_gid out[6], const char *host); /* as a mlx5 port has them; their number */
hk_ib_port invented_port(const char *name, const char *host, uint8_t layer);
#endif
