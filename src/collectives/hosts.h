/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces of programs that treat a host's ranks and the equal ranks of all hosts (a rail) differently. */
#ifndef HK_COLLECTIVES_HOSTS_H
#define HK_COLLECTIVES_HOSTS_H
#include "../program/layout.h"
#include "algorithm.h"
#include "pattern.h"

enum { HK_HOST_FAN = 255 }; /* the most ranks of a host that one instruction reads or writes */

/* The place of a rank: local number i among the `per` ranks of host h; `hosts`: the number of hosts. */
typedef struct hk_home {
  const hk_build *w;
  int h, i, hosts, per;
} hk_home;

static inline hk_home hk_home_of(const hk_build *w) {
  int h = hk_layout_host_of(w->layout, w->rank);
  return (hk_home){.w = w,
                   .h = h,
                   .i = hk_layout_local_of(w->layout, w->rank),
                   .hosts = hk_layout_hosts(w->layout),
                   .per = hk_layout_size(w->layout, h, w->nranks)};
}
/* The fewest ranks of any host. */
static inline int hk_home_least(const hk_home *p) { return p->w->layout ? p->w->layout->least : p->per; }
/* The rank with this local number on this host. */
static inline int hk_home_local(const hk_home *p, int local) { return hk_layout_rank(p->w->layout, p->h, local); }
/* The rank with the same local number on the host `by` further. */
static inline int hk_home_rail(const hk_home *p, int by) {
  return hk_layout_rank(p->w->layout, hk_shift(p->h, by, p->hosts), p->i);
}

/* Appends a link to (or from) each other rank of the host, on the current channel. */
static inline void hk_home_send_all(hk_builder *b, const hk_home *p, unsigned block, int stride, hk_operand *to,
                                    unsigned *n) {
  for (int j = 1; j < p->per; j++)
    to[(*n)++] = hk_send_to(b, hk_home_local(p, hk_shift(p->i, j, p->per)), block, stride);
}
static inline void hk_home_recv_all(hk_builder *b, const hk_home *p, unsigned block, int stride, hk_operand *from,
                                    unsigned *n) {
  for (int j = 1; j < p->per; j++)
    from[(*n)++] = hk_recv_from(b, hk_home_local(p, hk_shift(p->i, j, p->per)), block, stride);
}
#endif
