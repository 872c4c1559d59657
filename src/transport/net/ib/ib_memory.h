/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that the user has, on the host and in GPUs. */
#pragma once
#include "ib_conn.h"

/* ---- ib_memory.c: memory that the user has registered with the communicator ---- */
/* The provider's `memory` and `refer`. */
void hk_ib_user_memory(void *ctx, void *base, size_t bytes, bool there);
bool hk_ib_refer(void *ctx, const void *data, size_t bytes);
bool hk_ib_is_registered(hk_ib_ctx *x, const void *data, size_t bytes);
/* The registration with the device of the user's memory that contains the data. NULL if the device refuses it, or the
 * user has not registered it. `writes`: it must allow writes of the peer's card. */
hk_ibv_mr *hk_ib_user_mr(hk_ib_ctx *x, hk_ib_device *d, const void *data, size_t bytes, bool writes);
void hk_ib_user_leave(hk_ib_ctx *x, const hk_ib_device *d); /* deregisters all of it from the device */
void hk_ib_place_min(hk_ib_ctx *x, hk_link *link);          /* sets link->place_min */

/* ---- ib_gpu.c: payloads in a GPU's memory ---- */
bool hk_ib_takes_gpu(void *ctx, const hk_net_end *e); /* the provider's takes_gpu */
/* Registers the end's payloads in a GPU's memory. Returns NULL with the cause if the card refuses, although it accepted
 * such memory in the trial: if none of the end's payloads is registered yet, they move to host memory, and link->gpu is
 * NULL. */
hk_ibv_mr *hk_ib_gpu_mr(hk_ib_conn *c, const hk_ib_path *w, hk_net_end *e, char why[160]);
/* Returns true if an end's payloads in GPU memory are not registered yet. Only the lane's thread may do that. */
bool hk_ib_gpu_unsettled(const hk_ib_conn *c);
