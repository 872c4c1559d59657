/* SPDX-License-Identifier: Apache-2.0 */
/* All of the user's settings that affect selection, read once, in the same way by a communicator's init, `hocket plan`
 * and the simulator. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include "../topo/paths.h"
#include "constants.h"
#include "filter.h"

struct hk_outlines;       /* outlines.h */
struct hk_program_folder; /* programs.h */
struct hk_settings;       /* base/param.h */
struct hk_user_programs;  /* programs.h */

/* Settings that must be equal on all ranks, because ranks could otherwise make different decisions. */
typedef enum hk_consistency {
  HK_AGREE_ALGO,
  HK_AGREE_PROTO,
  HK_AGREE_CHANNELS,
  HK_AGREE_TUNING_FILE,
  HK_AGREE_PROGRAMS,
  HK_AGREE_GRAPH_FILE,
  HK_AGREE_CROSS_NIC,
  HK_AGREE_P2P_LEVEL,
  HK_AGREE_GDR_LEVEL,
  HK_AGREE_BATCH_INVARIANT,
  HK_AGREE_CONFIG, /* the communicator's ncclConfig_t */
  HK_AGREE_COLLNET,
  HK_AGREE_COUNT
} hk_consistency;
extern const char *const hk_consistency_names[HK_AGREE_COUNT]; /* the variable that must be set equally */

typedef struct hk_overrides {
  const struct hk_settings *settings;
  hk_filter filter;
  struct hk_user_programs *programs; /* HOCKET_PROGRAMS, to which `filter` points; NULL: none */
  struct hk_program_folder *folder;  /* of their files; NULL: none */
  bool by_place;                     /* HOCKET_PROGRAMS_BY_PLACE */
  struct hk_rules *rules;            /* rules of the tuning file, to which `filter` points; NULL: none */
  hk_path_rules paths;               /* NCCL_P2P_LEVEL, NCCL_P2P_DISABLE, NCCL_PXN_DISABLE, NCCL_NVB_DISABLE */
  /* NCCL_NET_GDR_LEVEL: if a GPU and a NIC are further apart, data goes through host memory */
  hk_path_class gdr_level;
  hk_constants constants;
  bool tuned;                         /* the constants were measured */
  uint64_t agreement[HK_AGREE_COUNT]; /* hashes of the settings */
} hk_overrides;

/* The overrides in `settings`, which must outlive them.  min_channels and max_channels (0: none) are ncclConfig_t's
 * minCTAs and maxCTAs.  HK_ERR_ARGUMENT says which setting is wrong.  Call hk_overrides_clear in any case.
 * If the user brings programs, settings that name algorithms are read by hk_overrides_load. */
hk_status hk_overrides_read(hk_overrides *o, const struct hk_settings *s, int min_channels, int max_channels);
/* The number of files of programs that the user brings. */
int hk_overrides_files(const hk_overrides *o);
/* Loads the user's programs, then reads the settings that name algorithms; `ways` and `proved` as in
 * hk_user_programs_load. Does nothing if there are none. */
hk_status hk_overrides_load(hk_overrides *o, uint8_t *ways, bool proved);
/* Equal on ranks that have loaded the same programs and have the same rules. */
uint64_t hk_overrides_loaded(const hk_overrides *o);
/* Adds the programs of a text to those that may be chosen; errors name it by `name`, `way` as in hk_user_programs_add.
 * HK_ERR_ARGUMENT: it is for another number of ranks, too. hk_overrides_drop_program removes what was added since
 * hk_overrides_programs had that value; `outlines`: of the machine. */
hk_status hk_overrides_add_program(hk_overrides *o, int nranks, const char *name, const char *text, uint8_t *way);
void hk_overrides_drop_program(hk_overrides *o, struct hk_outlines *outlines, uint64_t hash_before);
uint64_t hk_overrides_programs(const hk_overrides *o); /* the hash of the programs; 0: none */
void hk_overrides_clear(hk_overrides *o);
