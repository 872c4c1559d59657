/* SPDX-License-Identifier: Apache-2.0 */
/* The output of `hocket sim`. */
#pragma once
#include "../sim/sim.h"
#include "tools.h"

struct hk_cluster; /* topo/topo.h */

typedef struct hk_sim_site {
  struct hk_cluster *cluster;
  hk_simulator *simulator;
  const char *name;
} hk_sim_site;

typedef struct hk_sim_row {
  hk_sim_site *site;
  int series;         /* rows of one curve have one number */
  const char *wanted; /* the requested algorithm; NULL: the selector's choice */
  size_t bytes;
  hk_sim_result result;
} hk_sim_row;

typedef struct hk_sim_view {
  hk_coll coll;
  hk_sim_site *sites;
  hk_sim_row *rows;
  int nsites, nrows, capacity, nseries;
} hk_sim_view;

hk_sim_row *hk_sim_view_add(hk_sim_view *v); /* NULL: out of memory */
void hk_sim_view_clear(hk_sim_view *v);
void hk_sim_view_table(const hk_sim_view *v, FILE *to);
void hk_sim_view_links(const hk_sim_view *v, FILE *to);
void hk_sim_view_json(const hk_sim_view *v, FILE *to);
/* Returns an exit code, after printing the error. */
int hk_sim_view_can_plot(const char *file);
int hk_sim_view_plot(const hk_sim_view *v, const char *file);
