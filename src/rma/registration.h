/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory and windows of a communicator.  From any thread. */
#pragma once
#include "../core/comm.h"
#include "../transport/messages.h"

struct hk_symmetric; /* windows.h */

struct hk_registration {
  ncclComm_t comm;
  void *base;
  size_t bytes;
  int flags; /* NCCL_WIN_, of a window */
  bool is_window;
  void *user;                     /* the user's handle; a window's may be an address in GPU memory */
  void *handle;                   /* the backend's for the memory; NULL: it has none */
  struct hk_symmetric *symmetric; /* NULL: other ranks do not map it */
  uint64_t number;                /* number among the symmetric windows, from 1; 0: not symmetric */
  hk_registration *next, *next_window;
};

/* `given` describes the memory; *out: the user's handle. */
hk_status hk_registration_add(const hk_registration *given, void **out);
/* `who`: the API call.  A NULL handle is none. */
hk_status hk_registration_drop(const char *who, ncclComm_t c, const void *handle);
/* Finds a window of any communicator of the process. `out`: the caller's result pointer, only checked for NULL. */
hk_status hk_registration_find(const char *who, ncclWindow_t win, const void *out, const hk_registration **found);
/* This rank's window of that number, from 1. */
hk_window_state hk_registration_window(ncclComm_t c, uint64_t number, hk_window *out);
/* Returns the number of a window, and *bytes its size; 0: it is no symmetric window of the communicator. */
uint64_t hk_registration_number(ncclComm_t c, ncclWindow_t win, size_t *bytes);
