/* SPDX-License-Identifier: Apache-2.0 */
/* The state of reading an MSCCL++ plan. mscclpp_file.c reads gpus and thread blocks, mscclpp_ops.c reads
 * operations. */
#pragma once
#include <string.h>
#include "../base/array.h"
#include "mscclpp.h"

/* A thread block's lists: its channels, remote buffers and switches by their numbers in the thread block. */
typedef struct hk_mscclpp_lists {
  int *channels[HK_MSCCLPP_TYPES], *remotes[2], *switches;
  int nchannels[HK_MSCCLPP_TYPES], nremotes[2], nswitches;
} hk_mscclpp_lists;

typedef struct hk_mscclpp_reader {
  hk_mscclpp_file *f;
  hk_json_tree *tree;
  int block;
  hk_mscclpp_lists lists;
  long long unit, unit_chunks; /* of the first pipeline; 0: there is none so far */
} hk_mscclpp_reader;

static inline bool hk_mscclpp_good(const hk_mscclpp_reader *r) { return !r->tree->errors; }
#define HK_MSCCLPP_NEXT(r, array, n) (HK_RESERVE_NEXT(array, n) || hk_json_no_memory((r)->tree))

/* "memory", "port", "switch": 0, 1, 2; -1 is an error. */
enum { HK_MSCCLPP_SWITCH = HK_MSCCLPP_SEMAPHORE };
static inline int hk_mscclpp_read_type(const hk_json_node *n, const char *key) {
  static const char *const types[] = {"memory", "port", "switch"};
  const char *text = hk_json_get_text(n, key, true);
  for (int i = 0; text && i < 3; i++)
    if (!strcmp(text, types[i])) return i;
  if (text) hk_json_say(n, "\"%s\" is \"%.20s\", which is none of memory, port, switch", key, text);
  return -1;
}

static inline int hk_mscclpp_read_space(const hk_json_node *n, const char *key) {
  const char *text = hk_json_get_text(n, key, true);
  const char *at = text && *text && !text[1] ? strchr("ios", *text) : NULL;
  if (text && !at) hk_json_say(n, "\"%s\" is \"%.20s\", which is none of i, o, s", key, text);
  return at ? (int)(at - strchr("ios", 'i')) : -1;
}

static inline int hk_mscclpp_read_int(const hk_json_node *n, const char *key, long long min, long long max) {
  long long v = min;
  hk_json_get_whole(n, key, true, min, max, &v);
  return (int)v;
}

/* Appends numbers below `limit` to a list. */
static inline void hk_mscclpp_read_numbers(hk_mscclpp_reader *r, const hk_json_node *n, const char *key, int limit,
                                           int **list, int *count) {
  hk_json_node numbers, v;
  if (!hk_json_get(n, key, HK_JSON_LIST, true, &numbers)) return;
  for (size_t i = 0; i < hk_json_size(&numbers) && hk_mscclpp_good(r); i++) {
    if (!hk_json_at(&numbers, i, HK_JSON_WHOLE, &v) || !hk_json_within(&v, 0, limit - 1) ||
        !HK_MSCCLPP_NEXT(r, *list, *count))
      return;
    (*list)[(*count)++] = (int)hk_json_value(&v);
  }
}

/* mscclpp_ops.c: appends the operations of a thread block, or of a pipeline (`nested`), to r->block. */
void hk_mscclpp_read_ops(hk_mscclpp_reader *r, const hk_json_node *in, bool nested);
