/* SPDX-License-Identifier: Apache-2.0 */
/* Chooses the plan that runs a call. */
#pragma once
#include <nccl.h>
#include <stddef.h>
#include <stdint.h>
#include "../base/status.h"

struct hk_call;
struct hk_launch;
struct hk_plan;

/* Writes the plan and the launch arguments of a collective; both are valid until the next call of the same
 * collective. */
hk_status hk_choose(ncclComm_t c, const struct hk_call *op, const struct hk_plan **plan,
                    const struct hk_launch **launch);
hk_status hk_choose_scratch(ncclComm_t c, size_t bytes, void **out);
/* Forgets the choices of earlier calls. Their plans stay. */
void hk_choices_forget(ncclComm_t c);
void hk_plans_free(ncclComm_t c);
hk_status hk_plans_new(ncclComm_t c); /* c->plans */
