/* SPDX-License-Identifier: Apache-2.0 */
/* Frees a communicator's parts, in an order in which no part uses one that is freed. */
#include <stdlib.h>
#include "../base/service.h"
#include "../boot/bootstrap.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../failure/flight.h"
#include "../failure/watch.h"
#include "../rma/rma.h"
#include "../run/profiler.h"
#include "../run/selection.h"
#include "children.h"
#include "ras_part.h"

void hk_comm_destroy(ncclComm_t c) {
  hk_flight_end(c);
  hk_watch_end(c);
  if (c->backend->drain) c->backend->drain(c); /* peers may wait for what it sends until then */
  c->backend->stop(c);
  hk_rma_end(c); /* its messages use the transports */
  hk_transfers_free(c);
  hk_wire_free(c);
  /* Before the bootstrap, which owns the communicator's name; after the networks, which report events to it. */
  hk_profiler_free(c);
  if (c->bootstrap) hk_bootstrap_leave(c->bootstrap);
  hk_ras_part_end(c);
  if (c->service) hk_service_free(c->service);
  hk_plans_free(c);
  if (c->backend->detach) c->backend->detach(c);
  hk_selection_free(c);
  free(c->peers);
  free(c->numerics.redops);
  free(c->grow_id);
  hk_registrations_free(c);
  hk_device_comms_free(c);
  hk_children_free(c);
  hk_comm_release(c);
}
