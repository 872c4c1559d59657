/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Multicast memory of all ranks of a host, for a switch that multicasts and reduces (NVLS). Each rank has its own GPU.
 * They bind memory of one layout to one multicast object, which other processes get by file descriptor. Ranks have
 * their places in the host's team as numbers. For each channel:
 *
 *   done    counters, a rank's own, as all links have them: of what it gives to p, of what it takes from r
 *   word    [p][r][slot]  rank r has put its part for p into its own slot; [p][p][slot]: p has written to all
 *   head    [p]           p has added up;  [p][r] r has read what p has written to all
 *   given   [p][slot]     each rank's own part of what p is to add up
 *   sums    [p][slot]     what p has written to all
 *
 * For an allreduce, to which every rank gives one part and whose sum every rank reads itself:
 *
 *   part_word [r][slot]   rank r has put its part into its own slot
 *   part_head [r]         r has read the sum
 *   part      [slot]      each rank's own
 *
 * For the first channels only, because small messages use few channels:
 *
 *   lines     [p][slot]   LL lines that p has written to all
 */
#pragma once
#include <stdatomic.h>
#include "../../device/device.h"
#include "../../program/limits.h"

struct hk_device_env;

enum { HK_MULTICAST_RANKS = 16, HK_MULTICAST_LL_CHANNELS = 4 }; /* the most ranks; channels with lines */
/* bytes: of a counter with its line, of a slot's word */
enum { HK_MULTICAST_LINE = 8 * HK_GPU_HEAD_STRIDE, HK_MULTICAST_WORD = 8 * HK_GPU_WORD_STRIDE };

/* The ranks of a host, in rising order. The first one makes the object. */
typedef struct hk_multicast_team {
  int n, rank[HK_MULTICAST_RANKS];
  bool processes; /* they are in several processes */
} hk_multicast_team;
static inline int hk_multicast_place(const hk_multicast_team *t, int rank) {
  int k = 0;
  while (k < t->n - 1 && t->rank[k] != rank) k++;
  return k;
}

/* One for all ranks of a process. */
typedef struct hk_multicast {
  hk_multicast_team team;
  uint64_t object;
  bool made; /* there is an object */
  /* in memory shared by the host's processes: the number of ranks whose kernels have ended; NULL: there is one */
  _Atomic(int) *left;
  _Atomic(bool) bound; /* all have bound memory */
  size_t bytes, slot_bytes;
  unsigned nslots, channels;
  /* For each place of a rank of this process: its own memory, and the mapping by which it accesses all ranks'. */
  hk_memory own[HK_MULTICAST_RANKS], all[HK_MULTICAST_RANKS];
} hk_multicast;

/* Offsets in a channel. The memory contains first the signals (all fields before `given`) of all channels, then the
 * lines, then `given` to `part` of each channel. */
typedef struct hk_multicast_layout {
  size_t done, part_done, word, adds, reads, part_word, part_head, given, sums, part, end;
} hk_multicast_layout;
hk_multicast_layout hk_multicast_layout_of(const hk_multicast *m);
/* The offset to add to `given`, `sums` and `part` for a channel. */
size_t hk_multicast_data(const hk_multicast *m, unsigned channel);
/* The offset of a channel's lines; 0: it has none. */
size_t hk_multicast_lines(const hk_multicast *m, unsigned channel);
/* Bytes of the signals. hk_multicast_zeroed: bytes of the signals and the lines after them, which must be zeroed. */
size_t hk_multicast_signals(const hk_multicast *m);
size_t hk_multicast_zeroed(const hk_multicast *m);

/* By all ranks of all hosts, each with its own host's team (NULL: it cannot, for the reason `why`), on at most
 * `channels` channels; the number of the team's first rank counts.  *all: every rank takes part; else none does, and
 * the reason is logged. */
hk_status hk_multicast_join(const struct hk_device_env *e, hk_multicast *m, const hk_multicast_team *team,
                            const char *why, unsigned channels, bool *all);
void hk_multicast_leave(hk_multicast *m); /* this rank's kernels have ended */
/* The kernels of all ranks of this process have ended.  devices[r] NULL: rank r is in another process. */
void hk_multicast_free(hk_multicast *m, hk_device *const *devices);
