/* SPDX-License-Identifier: Apache-2.0 */
/* Patterns of traffic inside a host: puts each pattern's messages on the links of their paths, and finds the load of
 * the fullest link. With a switch all patterns cost the same; they differ if paths lead through other GPUs, or if links
 * are shared. */
#ifndef HK_COLLECTIVES_TRAFFIC_H
#define HK_COLLECTIVES_TRAFFIC_H
#include "../topo/search.h"
#include "algorithm.h"

/* Fills out[1 .. HK_TRAFFICS - 1] for ranks on these nodes; keeps an entry that is already worse. `rings`: the host's
 * channels; NULL: entries of patterns that follow them stay unset. */
hk_status hk_traffic_look(hk_traffic out[HK_TRAFFICS], const hk_paths *paths, const uint32_t *nodes, int n,
                          const hk_channels *rings);
#endif
