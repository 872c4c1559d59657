/* SPDX-License-Identifier: Apache-2.0 */
/* The windows of a communicator as one-sided operations see them (api_register.c). From any thread. */
#ifndef HK_RUNTIME_REGISTRATION_H
#define HK_RUNTIME_REGISTRATION_H
#include "../transport/messages.h"
#include "comm.h"

/* This rank's window of that number, from 1. */
hk_window_state hk_registration_window(ncclComm_t c, uint64_t number, hk_window *out);
/* The number of a window and its size; 0: it is no symmetric window of the communicator. */
uint64_t hk_registration_number(ncclComm_t c, ncclWindow_t win, size_t *bytes);
/* On host memory: true if another rank's window of that number was refused, with the cause. */
bool hk_registration_refused(ncclComm_t c, uint64_t number, char words[HK_EVENT_TEXT]);
#endif
