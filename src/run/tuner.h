/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL tuner plugins. A plugin is asked for each decision that is neither cached nor made by a tuning file. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"
#include "../program/operation.h"

struct hk_decision; /* decide/select.h */
struct hk_filter;   /* decide/filter.h */
struct hk_machine;  /* decide/machine.h */
struct hk_settings; /* base/param.h */

typedef struct hk_tuner hk_tuner;

/* Loads the plugin that NCCL_TUNER_PLUGIN names, else libnccl-tuner.so. *out is NULL if there is none. A named one
 * that cannot be loaded is a warning. */
hk_status hk_tuner_load(const struct hk_settings *settings, hk_tuner **out);
uint64_t hk_tuner_hash(const hk_tuner *t); /* hash of its name and version; 0: none */
/* Initialises the plugin for a communicator; false if the plugin refuses. */
bool hk_tuner_begin(hk_tuner *t, const struct hk_machine *m, uint64_t comm);
/* The decision of hk_select, which the plugin may change unless a tuning file made it. t may be NULL. */
hk_status hk_tuner_select(hk_tuner *t, const struct hk_machine *m, const struct hk_filter *w, hk_coll coll,
                          size_t bytes, struct hk_decision *d);
/* Lets a plugin of version 6 make the chunk smaller; `chunk`: the model's. */
size_t hk_tuner_chunk(const hk_tuner *t, hk_coll coll, size_t bytes, const struct hk_decision *d, int channels,
                      size_t chunk);
void hk_tuner_free(hk_tuner *t); /* t may be NULL */
