/* SPDX-License-Identifier: Apache-2.0 */
/**
 * The RDMA ports of this machine, and the choice of the ports and GIDs by which two ranks communicate.
 *
 * GID pairs are sorted by these rules: the wanted RoCE version (2) before the other; IPv4 before IPv6 before link-local
 * addresses, which do not cross a router; one network before two. Between equal pairs ports of one rail come before
 * those of two, then each rank's order of its ports decides. Both ranks sort the same list and get the same order.
 * Nothing here has state, so every function may run on any thread.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../../../base/status.h"
#include "../../../base/verbs_abi.h"

struct hk_settings; /* base/param.h */

enum {
  HK_IB_NAME = 32,
  HK_IB_GIDS = 6,
  HK_IB_OFFERED = 8, /* ports that a rank offers a peer */
  HK_IB_PORTS = 32,
  HK_IB_PAIRS = 64,
  HK_IB_ROUTE = 200
};
typedef enum hk_ib_gid_kind { HK_IB_GID_IB, HK_IB_GID_ROCE1, HK_IB_GID_ROCE2 } hk_ib_gid_kind;

typedef struct hk_ib_gid {
  hk_ibv_gid gid;
  uint8_t index, kind; /* hk_ib_gid_kind */
  uint8_t prefix;      /* bits of its network's prefix; IPv4: of 32 */
  uint8_t reserved[5];
} hk_ib_gid;

/* A port, as it is sent to peers. */
typedef struct hk_ib_port {
  char device[HK_IB_NAME];
  uint16_t lid;
  uint8_t number, layer, mtu; /* HK_IBV_LAYER_*; 1..5: 256..4096 bytes */
  uint8_t ngids;
  uint8_t card;     /* ports of one rank with the same number act as one network device */
  uint8_t far;      /* 1: the rank is on a GPU whose memory this port is not to access, though others may */
  uint32_t mbps;    /* of the link; 0: unknown */
  int16_t rail;     /* by NCCL_IB_HCA; -1: not given */
  uint8_t position; /* among the ports of the host that NCCL_IB_HCA selects: their rail if none is given */
  uint8_t reserved[5];
  hk_ib_gid gids[HK_IB_GIDS]; /* best first */
} hk_ib_port;

/* The folder in which /sys is searched for devices: "", unless a test sets it. */
const char *hk_ib_root(void);
/* Returns true if NCCL_IB_HCA's value (may be NULL) selects this port. */
bool hk_ib_hca_takes(const char *filter, const char *device, int port);
/* The rail that it gives the port ("mlx5_0:1:3": 3); -1: none. */
int hk_ib_hca_rail(const char *filter, const char *device, int port);
/* Returns true if the device's queue pairs support RDMA writes with immediate data. Otherwise `why` names its kind. */
bool hk_ib_serves(const char *below, const char *device, char *why, size_t why_bytes);
/* Returns true if the device can be opened; otherwise a reason. A container may see devices of the host in /sys that it
 * has no right to. */
typedef bool hk_ib_opens(void *arg, const char *device, char *why, size_t why_bytes);
/* Finds the active ports that NCCL_IB_HCA selects, of the devices that `opens` takes (NULL: of all): the fast ones next
 * to this process's CPUs first, *nnear of them, then other fast ones, then those with less than half of the best one's
 * speed. Returns their number, or 0 with the reason in `why`. */
int hk_ib_ports(const struct hk_settings *set, hk_ib_port out[HK_IB_PORTS], int *nnear, hk_ib_opens *opens, void *arg,
                char *why, size_t why_bytes);

/* ---- ib_merge.c ---- */
/* Returns true if a port has less than half of the speed of the fastest one of all; an unknown speed is fast. Slow
 * ports stand by: they carry data only if no fast port does. */
bool hk_ib_is_slow(const hk_ib_port *port, const hk_ib_port *all, int n);
/* Numbers the cards by NCCL_IB_MERGE_NICS, NCCL_NET_MERGE_LEVEL and NCCL_NET_FORCE_MERGE, and makes the ports of a card
 * adjacent. Ports of different speeds stay apart: messages take turns over the ports of a card. Of functions with the
 * same port (NCCL_IB_MERGE_VFS) one is kept. HK_ERR_USAGE if a value is not valid. */
hk_status hk_ib_merge(const struct hk_settings *set, const char *root, hk_ib_port *ports, int *n, int *nnear);
/* Fills `out` with the ports that a rank offers a peer, best first: whole cards. Each `turn` begins with another near
 * card, and then with another port. Returns their number. */
int hk_ib_offer(const hk_ib_port *ports, int n, int nnear, int turn, hk_ib_port out[HK_IB_OFFERED]);

/* NCCL_NETDEVS_POLICY: the most cards that a rank's channels use, 0 for all that are near; HK_ERR_USAGE if its value is
 * not valid. */
hk_status hk_ib_cards_of(const struct hk_settings *set, int *most);

/* The user's restrictions of GIDs, from parameters. */
typedef struct hk_ib_gid_filter {
  int index;   /* -1: any */
  int version; /* of RoCE, preferred */
  int family;  /* AF_INET, AF_INET6, AF_UNSPEC */
  bool ranged; /* only GIDs in range/bits */
  uint8_t range[16], bits;
} hk_ib_gid_filter;
hk_status hk_ib_gid_filter_of(const struct hk_settings *set,
                              hk_ib_gid_filter *filter); /* HK_ERR_USAGE if a parameter is not valid */
/* Sorts the port's GIDs and removes those that are not wanted. Returns the number of the others. */
int hk_ib_gids_order(hk_ib_gid *gids, int n, const hk_ib_gid_filter *filter);
/* Fills `out` with the wanted GIDs of a RoCE port, best first, without their prefixes. `below` is the folder that has
 * /sys. Returns their number. */
int hk_ib_gids(const char *below, const char *device, int port, const hk_ib_gid_filter *filter,
               hk_ib_gid out[HK_IB_GIDS]);
/* The rank of a GID if this RoCE version is preferred; lower is better. */
int hk_ib_gid_cost(const hk_ib_gid *g, int version);
/* "RoCE v2, IPv4" */
const char *hk_ib_gid_words(const hk_ib_gid *g, char text[40]);

typedef struct hk_ib_pair {
  uint8_t mine, theirs;      /* indices of the ports, as offered */
  uint8_t my_gid, their_gid; /* indices in the ports' lists */
  uint16_t cost;
  bool worked, out; /* of a connection: it has carried data; it is not to be chosen now */
} hk_ib_pair;
/* Fills `out` with the pairs of ports and GIDs that can communicate, best first, of one rail before two. Returns their
 * number. `caller`: this is the lower rank. Both ends get the same order. Pairs of ports that are not to access a GPU's
 * memory, of two InfiniBand subnets without a router, or of two rails if NCCL_CROSS_NIC is 0, are left out if there are
 * others. */
int hk_ib_pairs(const struct hk_settings *set, const hk_ib_port *mine, int nmine, const hk_ib_port *theirs, int ntheirs,
                bool caller, int version, hk_ib_pair out[HK_IB_PAIRS]);
/* Of a port, what says which other ports it reaches: all ranks get it. */
enum { HK_IB_SPOTS = 14 };
typedef struct hk_ib_spot {
  uint64_t subnet; /* InfiniBand: its GIDs' prefix, without the router's LID; 0: unknown */
  int16_t rail;    /* as in hk_ib_port */
  uint8_t position, layer, routed;
  uint8_t reserved[3];
} hk_ib_spot;
hk_ib_spot hk_ib_spot_of(const hk_ib_port *p);
/* Returns true if a port of the first rank reaches one of the second. If not, `why` says between which rails or
 * subnets there is no way. */
bool hk_ib_spots_meet(const struct hk_settings *set, const hk_ib_spot *a, int na, const hk_ib_spot *b, int nb,
                      char *why, size_t why_bytes);
/* Returns true if two InfiniBand ports are in one subnet; else packets need a global header, and go to the router,
 * whose LID is in the peer's GID (0: it is not there). */
bool hk_ib_one_subnet(const hk_ib_port *a, const hk_ib_port *b);
uint16_t hk_ib_router_lid(const hk_ibv_gid *g);
/* Returns true if the second pair is as good as the first, and between other ports of the same two cards. */
bool hk_ib_pairs_go_together(const hk_ib_port *mine, const hk_ib_port *theirs, const hk_ib_pair *first,
                             const hk_ib_pair *second);
/* "RoCE v2, IPv4, one network". */
const char *hk_ib_pair_words(const hk_ib_port *mine, const hk_ib_port *theirs, const hk_ib_pair *pair, char text[64]);
/* "::ffff:10.0.0.1" */
const char *hk_ib_gid_text(const hk_ibv_gid *gid, char text[48]);
