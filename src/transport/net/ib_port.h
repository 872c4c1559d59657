/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The RDMA ports of this machine, and by which of them, with which GIDs, two ranks talk.
 *
 * A GID pair is better the earlier it stands here: the wanted RoCE version (2) before the other; IPv4 before IPv6 before
 * link-local addresses, which do not cross a router; one network before two.  Between equal ones each rank's own order of its
 * ports decides.  Both ranks rank the same list and get the same order.
 */
#ifndef HK_TRANSPORT_NET_IB_PORT_H
#define HK_TRANSPORT_NET_IB_PORT_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../base/status.h"
#include "../../base/verbs_abi.h"

enum {
  HK_IB_NAME = 32,
  HK_IB_GIDS = 6,
  HK_IB_OFFERED = 4, /* ports that a rank offers a peer */
  HK_IB_PORTS = 32,
  HK_IB_PAIRS = 64,
  HK_IB_ROUTE = 200
};
typedef enum hk_ib_gid_kind { HK_IB_GID_IB, HK_IB_GID_ROCE1, HK_IB_GID_ROCE2 } hk_ib_gid_kind;

typedef struct hk_ib_gid {
  hk_ibv_gid gid;
  uint8_t index, kind; /* hk_ib_gid_kind */
  uint8_t prefix;      /* bits of its network; IPv4: of 32 */
  uint8_t reserved[5];
} hk_ib_gid;

/* As it is told to peers. */
typedef struct hk_ib_port {
  char device[HK_IB_NAME];
  uint16_t lid;
  uint8_t number, layer, mtu; /* HK_IBV_LAYER_*; 1..5: 256..4096 bytes */
  uint8_t ngids;
  uint8_t card; /* ports of one rank with the same number act as one network device */
  uint8_t reserved;
  hk_ib_gid gids[HK_IB_GIDS]; /* best first */
} hk_ib_port;

/* The folder below which devices are looked for: "", unless a test says otherwise. */
const char *hk_ib_root(void);
/* Does NCCL_IB_HCA's value (may be NULL) take this port? */
bool hk_ib_hca_takes(const char *filter, const char *device, int port);
/* Can its queue pairs do what is needed (write with immediate data)?  Else `why` has what it is: iWARP, or something else. */
bool hk_ib_serves(const char *below, const char *device, char *why, size_t why_bytes);
/* Active ports that NCCL_IB_HCA takes, the *nnear next to this process's CPUs first.  0 with the reason in `why`. */
int hk_ib_ports(hk_ib_port out[HK_IB_PORTS], int *nnear, char *why, size_t why_bytes);

/* ib_merge.c */
/* Numbers the cards as NCCL_IB_MERGE_NICS, NCCL_NET_MERGE_LEVEL and NCCL_NET_FORCE_MERGE want it, with the ports of one behind
 * each other.  What NCCL_IB_MERGE_VFS takes for the same port is left once. */
hk_status hk_ib_merge(const char *root, hk_ib_port *ports, int *n, int *nnear);
/* What a rank offers a peer, best first: whole cards, each turn beginning with another one of those that are near, and then
 * with another port.  Gives how many. */
int hk_ib_offer(const hk_ib_port *ports, int n, int nnear, int turn, hk_ib_port out[HK_IB_OFFERED]);

/* The wish for GIDs, as parameters give it. */
typedef struct hk_ib_gid_wish {
  int index;   /* -1: any */
  int version; /* of RoCE, preferred */
  int family;  /* AF_INET, AF_INET6, AF_UNSPEC */
  bool ranged; /* only in range/bits */
  uint8_t range[16], bits;
} hk_ib_gid_wish;
hk_status hk_ib_gid_wishes(hk_ib_gid_wish *wish);
/* Puts the port's GIDs in order and removes those that are not wanted; gives how many are left. */
int hk_ib_gids_order(hk_ib_gid *gids, int n, const hk_ib_gid_wish *wish);
/* The wanted GIDs of a RoCE port of the machine below a folder, best first, without their networks' sizes; gives how many. */
int hk_ib_gids(const char *below, const char *device, int port, const hk_ib_gid_wish *wish, hk_ib_gid out[HK_IB_GIDS]);
/* The less the better, where the version is preferred. */
int hk_ib_gid_cost(const hk_ib_gid *g, int version);
/* "RoCE v2, IPv4" */
const char *hk_ib_gid_words(const hk_ib_gid *g, char text[40]);

typedef struct hk_ib_pair {
  uint8_t mine, theirs;      /* ports, as offered */
  uint8_t my_gid, their_gid; /* of the ports' lists */
  uint16_t cost;
  bool worked, out; /* of a connection: something has come through; it is not to be chosen now */
} hk_ib_pair;
/* Ways between ports, best first; gives their number.  `caller` ranks are the lower ones; both ends give them alike. */
int hk_ib_pairs(const hk_ib_port *mine, int nmine, const hk_ib_port *theirs, int ntheirs, bool caller, int version,
                hk_ib_pair out[HK_IB_PAIRS]);
/* Is a second pair as good as the first, between other ports of the same two cards? */
bool hk_ib_pairs_go_together(const hk_ib_port *mine, const hk_ib_port *theirs, const hk_ib_pair *first,
                             const hk_ib_pair *second);
/* "RoCE v2, IPv4, one network". */
const char *hk_ib_pair_words(const hk_ib_port *mine, const hk_ib_port *theirs, const hk_ib_pair *pair, char text[64]);
/* "::ffff:10.0.0.1" */
const char *hk_ib_gid_text(const hk_ibv_gid *gid, char text[48]);
#endif
