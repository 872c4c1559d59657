/* SPDX-License-Identifier: Apache-2.0 */
#include "ras_part.h"
#include <stdlib.h>
#include "../base/service.h"
#include "../core/comm.h"
#include "../ops/ras.h"

typedef struct hk_ras_part {
  bool retries; /* another process has the server */
  hk_service_timer retry;
} hk_ras_part;

hk_status hk_ras_part_begin(ncclComm_t c) {
  c->ras = calloc(1, sizeof *c->ras);
  if (!c->ras) return HK_FAIL_ERRNO("no memory for a communicator");
  c->ras->retries = hk_ras_hold(c->settings);
  return HK_OK;
}

/* On the service thread. */
static void ras_part_retry(void *arg, int fd, uint32_t events) {
  ncclComm_t c = arg;
  (void)fd, (void)events;
  if (hk_ras_take_over()) hk_service_tick(c->service, &c->ras->retry, 0, NULL, NULL);
}

void hk_ras_part_watch(ncclComm_t c) {
  if (c->ras->retries) hk_service_tick(c->service, &c->ras->retry, HK_RAS_RETRY_MS, ras_part_retry, c);
}

void hk_ras_part_heard_death(void) { (void)hk_ras_take_over(); }

void hk_ras_part_end(ncclComm_t c) {
  if (!c->ras) return;
  if (c->service) hk_service_tick(c->service, &c->ras->retry, 0, NULL, NULL); /* children may share it, and go on */
  hk_ras_release();
  free(c->ras);
  c->ras = NULL;
}
