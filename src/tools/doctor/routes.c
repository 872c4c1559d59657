/* SPDX-License-Identifier: Apache-2.0 */
/* RDMA between this host and another: the ports and GIDs that two ranks use, and whether the operating system has a
 * path. */
#include <arpa/inet.h>
#include <string.h>
#include "../../base/param.h"
#include "../../transport/net/ib/ib_cm.h"
#include "doctor.h"

enum { PATIENCE_MS = 2000 };

/* ---- what a listening doctor sends about its ports: a line for each GID ---- */

#define MARK "rdma "

size_t hk_doctor_ports_text(const hk_settings *set, char *text, size_t bytes) {
  hk_ib_port ports[HK_IB_PORTS];
  char why[160], gid[48];
  int nnear, n = set->IB_DISABLE ? 0 : hk_ib_ports(set, ports, &nnear, NULL, NULL, why, sizeof why);
  size_t used = 0;
  for (int i = 0; i < n; i++) {
    const hk_ib_port *p = &ports[i];
    for (int k = 0; k < (p->ngids ? p->ngids : 1); k++) {
      static const hk_ib_gid none;
      const hk_ib_gid *g = k < p->ngids ? &p->gids[k] : &none;
      int w = snprintf(text + used, bytes - used, MARK "%s:%d %d %d %d %d %d %s\n", p->device, p->number, p->layer,
                       p->lid, g->index, g->kind, g->prefix, hk_ib_gid_text(&g->gid, gid));
      if (w < 0 || used + (size_t)w >= bytes) return used; /* the best ones are enough */
      used += (size_t)w;
    }
  }
  return used;
}

/* A line of the other host, which is not trusted: numbers are limited to their fields, and device and number identify a
 * port. */
bool hk_doctor_ports_hear(const char *line, hk_ib_port ports[HK_IB_PORTS], int *n) {
  char device[HK_IB_NAME], gid[48];
  unsigned number, layer, lid, index, kind, prefix;
  hk_ib_gid g = {0};
  if (sscanf(line, MARK "%31[^:]:%u %u %u %u %u %u %47s", device, &number, &layer, &lid, &index, &kind, &prefix, gid) !=
          8 ||
      kind > HK_IB_GID_ROCE2 || prefix > 128 || inet_pton(AF_INET6, gid, g.gid.raw) != 1)
    return false;
  g.index = (uint8_t)index;
  g.kind = (uint8_t)kind;
  g.prefix = (uint8_t)prefix;
  hk_ib_port *p = NULL;
  for (int i = 0; i < *n; i++)
    if (strcmp(ports[i].device, device) == 0 && ports[i].number == (uint8_t)number) p = &ports[i];
  if (!p && *n < HK_IB_PORTS) {
    p = &ports[(*n)++];
    *p = (hk_ib_port){.number = (uint8_t)number, .layer = (uint8_t)layer, .lid = (uint16_t)lid};
    memcpy(p->device, device, sizeof device);
  }
  if (p && p->ngids < HK_IB_GIDS) p->gids[p->ngids++] = g;
  return true;
}

/* ---- the paths between both ---- */

static void routes_try_port(hk_doctor *d, const hk_ib_port *mine, const hk_ib_port *theirs, int ntheirs, int version) {
  hk_ib_pair pairs[HK_IB_PAIRS];
  char words[64], kernel[HK_IB_CM_WORDS], from[48], to[48];
  if (hk_ib_pairs(d->settings, mine, 1, theirs, ntheirs, true, version, pairs) == 0) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "hocket doctor gids, on both; NCCL_IB_HCA",
                  "%s:%d here has no GID of a kind that a port there has too", mine->device, mine->number);
    return;
  }
  const hk_ib_port *peer = &theirs[pairs[0].theirs];
  hk_ib_pair_words(mine, theirs, &pairs[0], words);
  if (mine->layer == HK_IBV_LAYER_INFINIBAND) {
    hk_doctor_say(d, HK_DOC_OK, NULL, "%s:%d here and %s:%d there: %s", mine->device, mine->number, peer->device,
                  peer->number, words);
    return;
  }
  const hk_ib_gid *a = &mine->gids[pairs[0].my_gid], *b = &peer->gids[pairs[0].their_gid];
  hk_ib_gid_text(&a->gid, from);
  hk_ib_gid_text(&b->gid, to);
  static const hk_wait_env alone; /* only the time ends the wait */
  hk_ib_cm_answer answer = hk_ib_cm_ask(&alone, &a->gid, &b->gid, PATIENCE_MS, kernel);
  hk_doctor_say(d,
                answer == HK_IB_CM_ROUTE      ? HK_DOC_OK
                : answer == HK_IB_CM_NO_ROUTE ? HK_DOC_PROBLEM
                                              : HK_DOC_NOTE,
                answer == HK_IB_CM_NO_ROUTE
                    ? "ip route get, ip neigh; ping -I between the addresses; VLANs of the switch"
                : answer == HK_IB_CM_NO_ANSWER
                    ? "an IPv4 address for the interface; apt-get install librdmacm1; modprobe rdma_ucm"
                    : NULL,
                "%s:%d GID %d (%s) here, %s:%d GID %d (%s) there: %s; %s", mine->device, mine->number, a->index, from,
                peer->device, peer->number, b->index, to, words, kernel);
}

void hk_doctor_routes(hk_doctor *d, const hk_ib_port *theirs, int ntheirs) {
  hk_ib_port mine[HK_IB_PORTS];
  hk_ib_gid_filter filter;
  char why[160];
  int nnear, n = d->settings->IB_DISABLE ? 0 : hk_ib_ports(d->settings, mine, &nnear, NULL, NULL, why, sizeof why);
  if ((n == 0 && ntheirs == 0) || hk_ib_gid_filter_of(d->settings, &filter) != HK_OK)
    return; /* the check gids reports why */
  if (n == 0 || ntheirs == 0)
    hk_doctor_say(d, HK_DOC_PROBLEM, "hocket doctor verbs gids, there and here",
                  "no RDMA between the two: %s has no port that is used", n ? "the other host" : "this host");
  for (int i = 0; i < n && ntheirs; i++) routes_try_port(d, &mine[i], theirs, ntheirs, filter.version);
}
