/* SPDX-License-Identifier: Apache-2.0 */
#include "launch.h"
#include <stdlib.h>
#include "../base/param.h"
#include "../core/call.h"
#include "order.h"

hk_status hk_gpu_launch(hk_gpu *g, const hk_call *call, hk_kernel_launch *l, hk_queue q) {
  unsigned cluster = call && call->options.cluster ? call->options.cluster - 1u : g->cluster;
  l->remote_domain = g->comm->settings->MEM_SYNC_DOMAIN != 0;
  if (cluster > 1 && l->blocks % cluster == 0) l->cluster = cluster; /* a grid must consist of whole clusters */
  g->order->ahead.entries++;
  return g->device->ops->kernel->launch(g->device, l, q);
}

/* NCCL's event of a call is complete when the kernel has begun or, with older drivers, when all work before it has
 * ended. */
hk_status hk_gpu_launch_record(const hk_gpu_launch_item *p, hk_queue q) {
  hk_device *d = p->gpu->device;
  return p->call->launched ? d->ops->stream->record(d, p->call->launched, q, &p->state) : HK_OK;
}

static int launch_by_comm(const void *a, const void *b) {
  const hk_gpu_launch_item *x = *(hk_gpu_launch_item *const *)a, *y = *(hk_gpu_launch_item *const *)b;
  return x->comm_id < y->comm_id ? -1 : x->comm_id > y->comm_id;
}

void hk_gpu_launch_sort(hk_gpu_launch_item **at, size_t n) { qsort(at, n, sizeof *at, launch_by_comm); }
