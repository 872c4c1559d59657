/* SPDX-License-Identifier: Apache-2.0 */
/* ncclCommSuspend and ncclCommResume: communicators release memory and allocate it again. */
#include "../boot/bootstrap.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../core/comm.h"
#include "../failure/failure.h"
#include "group.h"

static hk_status suspend_change(ncclComm_t c, bool suspend) {
  hk_status rc = HK_OK;
  const hk_backend *b = c->backend;
  const hk_suspension_ops *ops = b->suspension;
  const char *who = suspend ? "ncclCommSuspend" : "ncclCommResume";
  HK_OR_RETURN(hk_task_agree(c, who));
  /* Waits until all ranks are in the call: none uses another rank's memory after it is released, or before it is
   * allocated. */
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, who);
  if (suspend && b->drain) b->drain(c);
  HK_TRY(hk_bootstrap_barrier(c->bootstrap), out);
  if (ops) HK_TRY(suspend ? ops->suspend(c) : ops->resume(c), out);
  HK_TRY(hk_bootstrap_barrier(c->bootstrap), out);
  atomic_store(&c->health.suspended, suspend);
out:
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_IDLE, NULL);
  return hk_comm_failed(c, rc);
}
static hk_status suspend(ncclComm_t c, void *arg) { return (void)arg, suspend_change(c, true); }
static hk_status suspend_resume(ncclComm_t c, void *arg) { return (void)arg, suspend_change(c, false); }

static hk_status suspend_submit(ncclComm_t c, const char *who, bool suspended, hk_task_run *run) {
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(c, who), out);
  if (atomic_load(&c->health.suspended) != suspended) {
    rc = HK_FAIL(HK_ERR_USAGE, "%s: the communicator (rank %d of %d) is %s already", who, c->rank, c->nranks,
                 suspended ? "active" : "suspended");
    goto out; /* all ranks have the same state: no rank waits in this call */
  }
  return hk_group_submit_task(c, run, NULL);
out:
  return hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclCommSuspend, (ncclComm_t comm, int flags)) {
  if (!(flags & NCCL_SUSPEND_MEM)) { /* NCCL has no other flag, and ignores what it does not know */
    hk_status rc = hk_comm_check_usable(comm, "ncclCommSuspend");
    return (ncclResult_t)hk_group_remember(rc);
  }
  return (ncclResult_t)suspend_submit(comm, "ncclCommSuspend", false, suspend);
}

HK_API(ncclResult_t, ncclCommResume, (ncclComm_t comm)) {
  return (ncclResult_t)suspend_submit(comm, "ncclCommResume", true, suspend_resume);
}

HK_API(ncclResult_t, ncclCommMemStats, (ncclComm_t comm, ncclCommMemStat_t stat, uint64_t *value)) {
  uint64_t may = 0, stays = 0; /* a communicator on host memory has no GPU memory */
  hk_status rc = hk_comm_check_usable(comm, "ncclCommMemStats");
  if (rc == HK_OK && !value) rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommMemStats: value is NULL");
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (comm->backend->suspension) comm->backend->suspension->held(comm, &may, &stays);
  switch (stat) {
    case ncclStatGpuMemSuspend: *value = may; break;
    case ncclStatGpuMemSuspended: *value = atomic_load(&comm->health.suspended); break;
    case ncclStatGpuMemPersist: *value = stays; break;
    case ncclStatGpuMemTotal: *value = may + stays; break;
    default: rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommMemStats: statistic %d is none of ncclCommMemStat_t's", (int)stat);
  }
  return (ncclResult_t)rc;
}
