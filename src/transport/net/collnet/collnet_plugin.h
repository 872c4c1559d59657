/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Shared by the files of CollNet plugins: collnet.c finds a plugin and has the links for sums; collnet_rounds.c has
 * the links for gathers and scatters.
 */
#pragma once
#include "../../collnet.h"
#include "../plugin/plugin.h"
#include "collnet_abi.h"

enum {
  COLLNET_WINDOW = 8, /* the most sums under way, as in NCCL: plugins are made for this number */
  COLLNET_ROUNDS = 4  /* gathers or scatters under way */
};

typedef struct collnet_round {
  uint32_t bytes, flags, signature; /* of a block */
  void *request;                    /* NULL: its blocks are empty */
} collnet_round;

/* The gathers of a group, or its scatters. */
typedef struct collnet_rounds {
  hk_net_end to, from; /* `next`: slots taken (to) and delivered (from); `link` NULL: not opened */
  bool scatters;
  char *memory; /* of both FIFOs and of the places */
  size_t bytes;
  char *places;           /* COLLNET_ROUNDS of HK_COLLNET_ROUND_BYTES: a round's blocks one after another */
  void *registrations[2]; /* of the slots that the plugin reads or writes, and of the places */
  uint64_t posted, done;  /* rounds */
  collnet_round at[COLLNET_ROUNDS];
} collnet_rounds;

typedef struct collnet_state {
  hk_transport_state base; /* first: the caller holds a pointer to it */
  const collnet_v *calls;
  int version;
  char name[32], file[HK_PLUGIN_FILE], device[32];
  void *context, *listener, *comm;
  hk_plugin_thread thread; /* makes the calls that may block: connect, and the calls at the end */
  hk_plugin_job connecting, closing;
  void **handles; /* for connect; they point into `copies`, because a plugin may write to them */
  hk_collnet_fact *copies;
  int me, code;        /* of connect */
  hk_net_end to, from; /* the two ends of the group's link for sums; `link` NULL: not opened */
  int before, after;   /* ranks of the group */
  unsigned n;          /* ranks in it */
  char *memory;        /* of both FIFOs */
  size_t bytes;
  void *registrations[2]; /* of the payloads of `to` and `from` */
  uint64_t posted, done;
  void *requests[COLLNET_WINDOW]; /* posted sums, by number; NULL: it was empty */
  collnet_rounds rounds[2];       /* gathers, scatters */
} collnet_state;

/* Sizes of a FIFO in bytes. */
typedef struct collnet_sizes {
  size_t control, payload;
} collnet_sizes;

/* ---- collnet.c ---- */
collnet_sizes hk_collnet_sizes(const collnet_state *s);
/* An error of call `call`. */
hk_status hk_collnet_ended(const collnet_state *s, const char *call, int code);
hk_status hk_collnet_check_key(const collnet_state *s, const hk_link_key *key, const hk_net_end *e);
/* Pages that are not used cost no memory. */
hk_status hk_collnet_map(const collnet_state *s, size_t bytes, char **out);
/* Makes an end with a FIFO at `memory`. */
void hk_collnet_make_link(collnet_state *s, const hk_link_key *key, char *memory, hk_net_end *e, hk_link *link);

/* ---- collnet_rounds.c ---- */
hk_status hk_collnet_open_rounds(collnet_state *s, const hk_link_key *key, hk_link *link);
hk_status hk_collnet_progress_rounds(collnet_state *s, bool *moved);
