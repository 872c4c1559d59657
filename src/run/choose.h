/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the plan that runs a call. */
#pragma once
#include <nccl.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_algorithm;
struct hk_call;
struct hk_launch;
struct hk_plan;
struct hk_ring_settings; /* rings.h */

/* Writes the plan and the launch arguments of a collective; both are valid until the next call of the same
 * collective. */
hk_status hk_choose(ncclComm_t c, const struct hk_call *op, const struct hk_plan **plan,
                    const struct hk_launch **launch);
/* HK_ERR_ARGUMENT if none of the algorithms and protocols of op->options.only can run the call. */
hk_status hk_choose_check(ncclComm_t c, const struct hk_call *op, const char *who);
hk_status hk_choose_price(ncclComm_t c, const struct hk_call *op, double *us); /* microseconds, by the cost model */
hk_status hk_choose_scratch(ncclComm_t c, size_t bytes, void **out);
const struct hk_machine *hk_choose_machine(ncclComm_t c); /* decide/machine.h */
const struct hk_constants *hk_choose_constants(ncclComm_t c);
/* Sets the layout of the ranks, as hk_layout_new. */
hk_status hk_choose_layout(ncclComm_t c, const uint64_t *hosts, const uint16_t *order, int nchannels);
void hk_choose_rings(ncclComm_t c, struct hk_ring_settings *out); /* the user's settings */
int hk_choose_most_channels(ncclComm_t c);                        /* the user's limit, equal on all ranks; 0: none */
/* Adds the programs of a text to the algorithms of later calls; errors name the text by `name`. *way: as in
 * hk_user_programs_add (decide/programs.h). *hash: of all added ones. hk_choose_drop_program undoes it. */
hk_status hk_choose_add_program(ncclComm_t c, const char *name, const char *text, uint8_t *way, uint64_t *hash);
void hk_choose_drop_program(ncclComm_t c, uint64_t hash_before);
uint64_t hk_choose_programs(ncclComm_t c);                            /* the hash of those now; 0: none */
const struct hk_algorithm *const *hk_choose_algorithms(ncclComm_t c); /* all that may be chosen, ended by NULL */
/* Limits later calls of the collective to these algorithms: bit i is entry i of the registry. */
void hk_choose_only(ncclComm_t c, int coll, uint32_t algorithms);
hk_status hk_choose_new(ncclComm_t c); /* c->plans and c->selection */
void hk_plans_free(ncclComm_t c);
void hk_selection_free(ncclComm_t c); /* after the backend's detach */
