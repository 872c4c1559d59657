/* SPDX-License-Identifier: Apache-2.0 */
/* Who sends to whom inside a host, put on the links' ways: what the fullest link carries.  With a switch all kinds of traffic
 * cost the same; where ways lead over other GPUs, or over links that several share, they do not. */
#ifndef HK_COLLECTIVES_TRAFFIC_H
#define HK_COLLECTIVES_TRAFFIC_H
#include "../topo/search.h"
#include "algorithm.h"

/* Fills out[1 .. HK_TRAFFICS - 1] for ranks on these nodes; an entry that is worse already stays.  `rings`: the host's channels;
 * NULL: nothing is said of what follows them. */
hk_status hk_traffic_look(hk_traffic out[HK_TRAFFICS], const hk_paths *paths, const uint32_t *nodes, int n,
                          const hk_channels *rings);
#endif
