/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the user's settings that affect selection (overrides.h). */
#include "overrides.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h> /* access */
#include "../base/hash.h"
#include "../base/param.h"
#include "outlines.h"
#include "programs.h"
#include "rules.h"

const char *const hk_consistency_names[HK_AGREE_COUNT] = {
    [HK_AGREE_ALGO] = "NCCL_ALGO",
    [HK_AGREE_PROTO] = "NCCL_PROTO",
    [HK_AGREE_CHANNELS] =
        "NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS, NCCL_MIN_CTAS, NCCL_MAX_CTAS, or minCTAs and maxCTAs of ncclConfig_t",
    [HK_AGREE_TUNING_FILE] = "HOCKET_TUNING_FILE (what the file says)",
    [HK_AGREE_PROGRAMS] = "HOCKET_PROGRAMS (the files in the folder) or HOCKET_PROGRAMS_BY_PLACE",
    [HK_AGREE_GRAPH_FILE] = "NCCL_GRAPH_FILE",
    [HK_AGREE_CROSS_NIC] = "NCCL_CROSS_NIC",
    [HK_AGREE_P2P_LEVEL] = "NCCL_P2P_LEVEL, NCCL_PXN_DISABLE or NCCL_NVB_DISABLE",
    [HK_AGREE_GDR_LEVEL] = "NCCL_NET_GDR_LEVEL",
    [HK_AGREE_CONFIG] =
        ("nvlsCTAs, nChannelsPerNetPeer, nvlinkCentricSched or CTAPolicy of ncclConfig_t, or the variables "
         "that set them (NCCL_NVLS_NCHANNELS, NCCL_NCHANNELS_PER_NET_PEER, NCCL_CTA_POLICY, ...), NCCL_WIN_ENABLE or "
         "NCCL_LSA_TEAM_SIZE"),
    [HK_AGREE_COLLNET] = "NCCL_COLLNET_ENABLE, NCCL_COLLNET_NODE_THRESHOLD, or collnetEnable of ncclConfig_t",
    [HK_AGREE_BATCH_INVARIANT] = "HOCKET_BATCH_INVARIANT (or hocketCommSetBatchInvariant on the parent)",
};

static uint64_t overrides_hash_text(const char *text) {
  uint64_t h = 1;
  for (; text && *text; text++) h = hk_hash_mix(h, (unsigned char)*text);
  return h;
}

static hk_status overrides_read_level(const char *text, const char *name, hk_path_class *out) {
  if (!text || hk_path_class_parse(text, out)) return HK_OK;
  if (*text && strspn(text, "0123456789") == strlen(text)) {
    *out = HK_PATH_SYS; /* a number above the last level, as NCCL takes it */
    return HK_OK;
  }
  return HK_FAIL(HK_ERR_ARGUMENT, "%s is \"%s\", which is no level: write one of LOC, NVL, PIX, PXB, PHB, SYS", name,
                 text);
}

static hk_status overrides_read_channels(hk_overrides *o, const hk_settings *s, int min_channels, int max_channels) {
  hk_filter *w = &o->filter;
  w->min_channels = min_channels > s->MIN_NCHANNELS ? min_channels : (int)s->MIN_NCHANNELS;
  w->max_channels = hk_filter_stricter(max_channels, (int)s->MAX_NCHANNELS);
  o->agreement[HK_AGREE_CHANNELS] = hk_hash_mix(hk_hash_mix(1, (uint64_t)w->min_channels), (uint64_t)w->max_channels);
  if (!w->max_channels || w->min_channels <= w->max_channels) return HK_OK;
  return HK_FAIL(HK_ERR_ARGUMENT,
                 "at least %d channels are asked for and at most %d (NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS; minCTAs, "
                 "maxCTAs of ncclConfig_t): make the first no larger than the second",
                 w->min_channels, w->max_channels);
}

/* A file that the user named must exist; the one at the default place need not. */
static hk_status overrides_read_constants(hk_overrides *o, const hk_settings *s) {
  char usual[4096];
  const char *path = s->TUNE_FILE;
  o->constants = hk_constants_default;
  if (path && (!*path || !strcmp(path, "none"))) return HK_OK;
  if (!path && (!hk_constants_path(usual, sizeof usual) || access(usual, R_OK) != 0)) return HK_OK;
  o->tuned = true;
  return hk_constants_read(&o->constants, path ? path : usual);
}

/* The settings that name algorithms. */
static hk_status overrides_read_names(hk_overrides *o) {
  const hk_settings *s = o->settings;
  const char *rules = s->TUNING_FILE;
  HK_OR_RETURN(hk_filter_parse(&o->filter, s->ALGO, s->PROTO));
  if (rules && *rules) HK_OR_RETURN(hk_rules_read(&o->rules, rules, hk_filter_algorithms(&o->filter)));
  o->filter.rules = o->rules;
  return HK_OK;
}

static hk_status overrides_read_folder(hk_overrides *o) {
  const char *path = o->settings->PROGRAMS;
  o->by_place = o->settings->PROGRAMS_BY_PLACE != 0;
  o->agreement[HK_AGREE_PROGRAMS] = o->by_place;
  if (!path || !*path) return HK_OK;
  o->folder = calloc(1, sizeof *o->folder);
  if (!o->folder) return HK_FAIL_ERRNO("no memory for the list of files in %s", path);
  HK_OR_RETURN(hk_program_folder_list(o->folder, path));
  for (int i = 0; i < o->folder->n; i++)
    o->agreement[HK_AGREE_PROGRAMS] =
        hk_hash_mix(o->agreement[HK_AGREE_PROGRAMS], overrides_hash_text(o->folder->names[i]));
  return HK_OK;
}

int hk_overrides_files(const hk_overrides *o) { return o->folder ? o->folder->n : 0; }

hk_status hk_overrides_load(hk_overrides *o, uint8_t *ways, bool proved) {
  if (!hk_overrides_files(o)) return HK_OK;
  HK_OR_RETURN(hk_user_programs_load(&o->programs, o->folder, (unsigned)o->settings->SLOTS, ways, proved));
  o->filter.algorithms = o->programs->all;
  return overrides_read_names(o);
}

uint64_t hk_overrides_loaded(const hk_overrides *o) {
  return hk_hash_mix(hk_rules_hash(o->rules), o->programs ? o->programs->hash : 0);
}

hk_status hk_overrides_read(hk_overrides *o, const hk_settings *s, int min_channels, int max_channels) {
  *o = (hk_overrides){.settings = s, .gdr_level = HK_PATH_PXB};
  HK_OR_RETURN(overrides_read_folder(o));
  if (!hk_overrides_files(o)) HK_OR_RETURN(overrides_read_names(o));
  HK_OR_RETURN(overrides_read_channels(o, s, min_channels, max_channels));
  o->filter.batch_invariant = s->BATCH_INVARIANT != 0;
  HK_OR_RETURN(overrides_read_level(s->P2P_LEVEL, "NCCL_P2P_LEVEL", &o->paths.p2p_level));
  HK_OR_RETURN(overrides_read_level(s->NET_GDR_LEVEL, "NCCL_NET_GDR_LEVEL", &o->gdr_level));
  /* In the rules LOC means the default; for users it means that no GPU reaches another one. */
  o->paths.no_p2p = s->P2P_DISABLE != 0 || (s->P2P_LEVEL && !o->paths.p2p_level);
  o->paths.no_pxn = s->PXN_DISABLE != 0;
  o->paths.no_nvb = s->NVB_DISABLE != 0;
  HK_OR_RETURN(overrides_read_constants(o, s));
  o->agreement[HK_AGREE_ALGO] = overrides_hash_text(s->ALGO);
  o->agreement[HK_AGREE_PROTO] = overrides_hash_text(s->PROTO);
  o->agreement[HK_AGREE_TUNING_FILE] = hk_rules_hash(o->rules);
  o->agreement[HK_AGREE_GRAPH_FILE] = overrides_hash_text(s->GRAPH_FILE);
  o->agreement[HK_AGREE_CROSS_NIC] = (uint64_t)s->CROSS_NIC;
  o->agreement[HK_AGREE_P2P_LEVEL] =
      hk_hash_mix(hk_hash_mix(hk_hash_mix(1, (uint64_t)o->paths.p2p_level), o->paths.no_pxn), o->paths.no_nvb);
  o->agreement[HK_AGREE_GDR_LEVEL] = (uint64_t)o->gdr_level;
  return HK_OK;
}

uint64_t hk_overrides_programs(const hk_overrides *o) { return o->programs ? o->programs->hash : 0; }

hk_status hk_overrides_add_program(hk_overrides *o, int nranks, const char *name, const char *text, uint8_t *way) {
  if (!o->programs) HK_OR_RETURN(hk_user_programs_new(&o->programs));
  o->filter.algorithms = o->programs->all;
  const int before = o->programs->n;
  const uint64_t hash_before = o->programs->hash;
  HK_OR_RETURN(hk_user_programs_add(o->programs, name, text, (unsigned)o->settings->SLOTS, way));
  for (int i = before; i < o->programs->n; i++) {
    const int n = o->programs->own[i].loaded.nranks;
    if (n == nranks) continue;
    hk_user_programs_drop(o->programs, hash_before);
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: a program of %d ranks, and this communicator has %d", name, n, nranks);
  }
  return HK_OK;
}

void hk_overrides_drop_program(hk_overrides *o, hk_outlines *outlines, uint64_t hash_before) {
  hk_user_programs *p = o->programs;
  /* Prices are kept by address, and the next program has the address of one that goes. */
  for (int i = 0; i < p->n; i++) hk_outlines_forget(outlines, &p->own[i].algorithm);
  hk_user_programs_drop(p, hash_before);
}

void hk_overrides_clear(hk_overrides *o) {
  hk_rules_free(o->rules);
  hk_user_programs_free(o->programs);
  if (o->folder) hk_program_folder_free(o->folder);
  free(o->folder);
  *o = (hk_overrides){.settings = o->settings};
}
