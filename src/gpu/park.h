/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_GPU_PARK_H
#define HK_GPU_PARK_H
struct hk_gpu_suspended;

extern const struct hk_suspension_ops hk_gpu_suspension;
/* Ends the suspension of a communicator that is freed, or has its memory again.  NULL: it is not suspended. */
void hk_gpu_suspended_free(struct hk_gpu_suspended **suspended);
#endif
