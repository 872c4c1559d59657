/* SPDX-License-Identifier: Apache-2.0 */
/* The backends, and which of them a thread uses. */
#include "../core/backend.h"

const hk_backend *const hk_backends[] = {
    &hk_backend_gpu,
    &hk_backend_host, /* last: it works everywhere */
    NULL,
};

const hk_backend *hk_backend_choose(int *device) {
  const hk_backend *const *b = hk_backends;
  while (!(*b)->process->choose(device)) b++;
  return *b;
}

int hk_backend_devices(void) {
  int n = 0;
  for (const hk_backend *const *b = hk_backends; *b; b++) n += (*b)->process->devices();
  return n;
}
