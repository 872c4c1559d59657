/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL tuner plugins: asked for every decision that is not cached and that no tuning file made. */
#ifndef HK_RUNTIME_TUNER_H
#define HK_RUNTIME_TUNER_H
#include "../collectives/select.h"

typedef struct hk_tuner hk_tuner;

/* Looks for the plugin that NCCL_TUNER_PLUGIN names, else for libnccl-tuner.so.  *out is NULL where there is none; one that
 * was named and cannot be had is a warning. */
hk_status hk_tuner_load(hk_tuner **out);
uint64_t hk_tuner_hash(const hk_tuner *t); /* of its name and version; 0: none */
/* Begins its work for a communicator; false where it refuses. */
bool hk_tuner_begin(hk_tuner *t, const hk_machine *m, uint64_t comm);
/* Lets it change a decision. */
void hk_tuner_ask(hk_tuner *t, const hk_machine *m, const hk_wish *w, hk_coll coll, size_t bytes, hk_decision *d);
void hk_tuner_free(hk_tuner *t); /* NULL is fine */
#endif
