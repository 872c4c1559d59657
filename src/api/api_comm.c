/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators in the API: init, children, end, and queries. */
#include <hocket.h>
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../boot/meet.h"
#include "../comm/group.h"
#include "../comm/leave.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../core/call.h"
#include "../core/comm.h"
#include "../failure/failure.h"
#include "../program/operation.h"

HK_API(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id)) {
  HK_UNCANCELLED;
  if (!id) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclGetUniqueId: uniqueId is NULL");
  return (ncclResult_t)hk_bootstrap_new_id(id);
}

/* Creates a rank of a communicator without a parent. `how`: ids, which the caller keeps, and `grows`. `device`: the GPU
 * to use; CURRENT: the thread's current one. */
enum { CURRENT = -1 };
static ncclResult_t api_comm_init_rank(const char *who, ncclComm_t *newcomm, int nranks, int rank, hk_init how,
                                       const ncclConfig_t *config, int device) {
  hk_status rc = HK_OK;
  ncclComm_t c = NULL;
  ncclUniqueId *given = how.ids;
  if (newcomm) __atomic_store_n(newcomm, NULL, __ATOMIC_RELAXED); /* another thread may read it, to abort the init */
  if (nranks < 1 || nranks > HK_RANKS_MOST || rank < 0 || rank >= nranks)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s: rank %d of %d ranks: nranks must be 1 to %d, rank 0 to nranks - 1", who,
                       rank, nranks, HK_RANKS_MOST),
               out);
  if (how.nids < 1 || how.nids > nranks || !given)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s: %d ids for %d ranks: give 1 to nranks ids", who, how.nids, nranks), out);
  how.rank = rank;
  how.nranks = nranks;
  if (!newcomm) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "%s: comm is NULL", who), out);
  HK_TRY(hk_comm_new(&c, rank, nranks, config), out);
  if (c->device >= 0 && device >= 0) c->device = device;
  how.ids = malloc((size_t)how.nids * sizeof *given);
  if (!how.ids) {
    rc = HK_FAIL_ERRNO("no memory for %d ids", how.nids);
    how.ids = given;
    hk_comm_release(c);
    goto out;
  }
  memcpy(how.ids, given, (size_t)how.nids * sizeof *given);
  return (ncclResult_t)hk_group_submit_init(c, &how, newcomm);
out:
  return (ncclResult_t)hk_group_report_unstarted(&how, rc);
}

HK_API(ncclResult_t, ncclCommInitRank, (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank)) {
  HK_UNCANCELLED;
  return api_comm_init_rank("ncclCommInitRank", comm, nranks, rank, (hk_init){.ids = &id, .nids = 1}, NULL, CURRENT);
}

HK_API(ncclResult_t, ncclCommInitRankConfig,
       (ncclComm_t * comm, int nranks, ncclUniqueId id, int rank, ncclConfig_t *config)) {
  HK_UNCANCELLED;
  return api_comm_init_rank("ncclCommInitRankConfig", comm, nranks, rank, (hk_init){.ids = &id, .nids = 1}, config,
                            CURRENT);
}

HK_API(ncclResult_t, ncclCommInitRankScalable,
       (ncclComm_t * newcomm, int nranks, int myrank, int nId, ncclUniqueId *commIds, ncclConfig_t *config)) {
  HK_UNCANCELLED;
  return api_comm_init_rank("ncclCommInitRankScalable", newcomm, nranks, myrank, (hk_init){.ids = commIds, .nids = nId},
                            config, CURRENT);
}

HK_API(ncclResult_t, ncclCommInitAll, (ncclComm_t * comms, int ndev, const int *devlist)) {
  HK_UNCANCELLED;
  ncclUniqueId id;
  hk_status rc = HK_OK;
  if (!comms || ndev < 1)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclCommInitAll: %d devices into %p", ndev, (void *)comms), out);
  int gpus = hk_backend_devices();
  for (int i = 0; i < ndev && (devlist || gpus); i++) {
    int device = devlist ? devlist[i] : i;
    if (device >= 0 && (!gpus || device < gpus)) continue;
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommInitAll: device %d at place %d of the list: CUDA shows %d", device, i, gpus);
    goto out;
  }
  HK_TRY(hk_bootstrap_new_id(&id), out);
  HK_TRY(hk_group_start(), out);
  for (int i = 0; i < ndev; i++)
    api_comm_init_rank("ncclCommInitAll", &comms[i], ndev, i, (hk_init){.ids = &id, .nids = 1}, NULL,
                       devlist ? devlist[i] : i);
  rc = hk_group_end();
out:
  return (ncclResult_t)hk_group_remember(rc);
}

HK_EXPORT ncclResult_t hocketRankFromEnvironment(int *rank, int *nranks, int *localRanks, const char **launcher) {
  hk_launched place;
  hk_status rc = hk_launched_find(&place, NULL);
  if (rc != HK_OK) return (ncclResult_t)rc;
  if (rank) *rank = place.rank;
  if (nranks) *nranks = place.nranks;
  if (localRanks) *localRanks = place.local;
  if (launcher) *launcher = place.launcher;
  return ncclSuccess;
}

HK_EXPORT ncclResult_t hocketCommFromEnvironment(ncclComm_t *comm, const char *address, int nranks, int rank,
                                                 ncclConfig_t *config) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  ncclUniqueId id = {{0}};
  hk_launched place = {.launcher = "none"};
  if (comm) *comm = NULL;
  if (nranks < 0 || rank < 0 || !address) HK_TRY(hk_launched_find(&place, NULL), out);
  if (nranks >= 0) place.nranks = nranks;
  if (rank >= 0) place.rank = rank;
  if (place.rank >= place.nranks)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "hocketCommFromEnvironment: rank %d of %d ranks: give both, or neither",
                       place.rank, place.nranks),
               out);
  /* The init makes the id of NCCL_COMM_ID itself. */
  const hk_settings *settings = hk_settings_now();
  if (comm && !settings->COMM_ID) HK_TRY(hk_meet(settings, &id, &place, address), out);
  return api_comm_init_rank("hocketCommFromEnvironment", comm, place.nranks, place.rank,
                            (hk_init){.ids = &id, .nids = 1}, config, CURRENT);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

/* Makes a child of `parent`; its rank and size follow from the exchange with the other members. */
static hk_status api_comm_init_child(ncclComm_t parent, ncclComm_t *newcomm, const ncclConfig_t *config, bool lends,
                                     hk_init *how) {
  hk_status rc = HK_OK;
  ncclComm_t c = NULL;
  how->parent = parent;
  HK_TRY(hk_comm_new(&c, parent->rank, parent->nranks, config), out);
  if (!config) {
    c->options.blocking = parent->options.blocking;
    c->options.split_share = parent->options.split_share;
    c->options.shrink_share = parent->options.shrink_share;
    c->options.p2p_peers = parent->options.p2p_peers;
  }
  /* A child must not share the resources of a failed parent, which may end with it. */
  if (lends && !hk_comm_failing(parent)) c->lender = parent;
  c->backend = parent->backend;
  c->device = parent->device;
  c->options.batch_invariant = (parent->numerics.redop_flags & HK_REDOP_INVARIANT) != 0;
  return hk_group_submit_init(c, how, newcomm);
out:
  rc = hk_group_report_unstarted(how, rc);
  free(how->exclude);
  return rc;
}

HK_API(ncclResult_t, ncclCommSplit, (ncclComm_t comm, int color, int key, ncclComm_t *newcomm, ncclConfig_t *config)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  hk_init how = {.parent = comm, .color = color, .key = key};
  HK_TRY(hk_comm_check_parent(comm, "ncclCommSplit"), out);
  if (!newcomm) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommSplit: newcomm is NULL");
    return (ncclResult_t)hk_group_report_unstarted(&how, rc);
  }
  *newcomm = NULL;
  if (color < 0 && color != NCCL_SPLIT_NOCOLOR) {
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommSplit: color %d: give 0 or more, or NCCL_SPLIT_NOCOLOR", color);
    return (ncclResult_t)hk_group_report_unstarted(&how, rc);
  }
  return (ncclResult_t)api_comm_init_child(comm, newcomm, config, comm->options.split_share, &how);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclCommGetUniqueId, (ncclComm_t comm, ncclUniqueId *uniqueId)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "ncclCommGetUniqueId"), out);
  if (!uniqueId) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclCommGetUniqueId: uniqueId is NULL"), out);
  if (comm->settings->COMM_ID)
    HK_GIVE_UP(HK_FAIL(HK_ERR_USAGE,
                       "ncclCommGetUniqueId: NCCL_COMM_ID is set, which names one communicator: unset it to grow"),
               out);
  if (comm->grow_id)
    HK_GIVE_UP(
        HK_FAIL(HK_ERR_USAGE, "ncclCommGetUniqueId: an id of this communicator waits for ncclCommGrow: one a growth"),
        out);
  HK_TRY(hk_bootstrap_new_id(uniqueId), out);
  comm->grow_id = malloc(sizeof *comm->grow_id);
  if (!comm->grow_id) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for an id"), out);
  *comm->grow_id = *uniqueId;
out:
  return (ncclResult_t)rc;
}

/* On a rank of the parent, which keeps its number. */
static hk_status api_comm_grow_parent(ncclComm_t parent, int nranks, const ncclUniqueId *id, ncclComm_t *newcomm,
                                      const ncclConfig_t *config) {
  hk_status rc = HK_OK;
  ncclComm_t c = NULL;
  hk_init how = {.parent = parent, .grows = true};
  how.ids = parent->grow_id;
  parent->grow_id = NULL;
  if (!how.ids && id) {
    how.ids = malloc(sizeof *id);
    if (!how.ids) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for an id"), out);
    *how.ids = *id;
  }
  how.nids = how.ids != NULL;
  HK_TRY(hk_comm_new(&c, parent->rank, nranks, config), out);
  if (!config) c->options = parent->options;
  c->device = parent->device;
  c->options.batch_invariant = (parent->numerics.redop_flags & HK_REDOP_INVARIANT) != 0;
  return hk_group_submit_init(c, &how, newcomm);
out:
  rc = hk_group_report_unstarted(&how, rc);
  free(how.ids);
  return rc;
}

HK_API(ncclResult_t, ncclCommGrow,
       (ncclComm_t comm, int nRanks, const ncclUniqueId *uniqueId, int rank, ncclComm_t *newcomm,
        ncclConfig_t *config)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  if (!comm) {
    if (uniqueId) {
      ncclUniqueId id = *uniqueId;
      return api_comm_init_rank("ncclCommGrow", newcomm, nRanks, rank, (hk_init){.ids = &id, .nids = 1, .grows = true},
                                config, CURRENT);
    }
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommGrow: a new rank (comm is NULL) needs the id that ncclCommGetUniqueId made");
    goto out;
  }
  HK_TRY(hk_comm_check_usable(comm, "ncclCommGrow"), out);
  if (!newcomm || rank != -1 || nRanks <= comm->nranks || nRanks > HK_RANKS_MOST) {
    rc = HK_FAIL(
        HK_ERR_ARGUMENT,
        "ncclCommGrow: newcomm %p, rank %d, %d ranks: ranks of the communicator give rank -1, and more than its "
        "%d ranks (at most %d)",
        (void *)newcomm, rank, nRanks, comm->nranks, HK_RANKS_MOST);
    return (ncclResult_t)hk_group_report_unstarted(&(hk_init){.parent = comm, .grows = true}, rc);
  }
  *newcomm = NULL;
  return (ncclResult_t)api_comm_grow_parent(comm, nRanks, uniqueId, newcomm, config);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

static hk_status api_comm_check_excluded(ncclComm_t c, const int *list, int n) {
  if (!list || n < 1 || n >= c->nranks)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclCommShrink: %d ranks to exclude of %d: give 1 to nranks - 1", n, c->nranks);
  for (int i = 0; i < n; i++) {
    if (list[i] < 0 || list[i] >= c->nranks)
      return HK_FAIL(HK_ERR_ARGUMENT, "ncclCommShrink: %d is not a rank of this communicator (0 to %d)", list[i],
                     c->nranks - 1);
    if (list[i] == c->rank)
      return HK_FAIL(HK_ERR_ARGUMENT, "ncclCommShrink: rank %d is to be excluded: excluded ranks do not call", c->rank);
    for (int k = 0; k < i; k++)
      if (list[k] == list[i]) return HK_FAIL(HK_ERR_ARGUMENT, "ncclCommShrink: rank %d is named twice", list[i]);
  }
  return HK_OK;
}

HK_EXPORT ncclResult_t hocketCommSetBatchInvariant(ncclComm_t comm, int on) {
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "hocketCommSetBatchInvariant"), out);
  if (on != 0 && on != 1)
    HK_GIVE_UP(
        HK_FAIL(HK_ERR_ARGUMENT, "hocketCommSetBatchInvariant: %d: give 1 to switch it on, 0 to switch it off", on),
        out);
  comm->numerics.redop_flags = on ? HK_REDOP_INVARIANT : 0;
out:
  return (ncclResult_t)rc;
}

HK_EXPORT ncclResult_t hocketCommSetQuantised(ncclComm_t comm, int on) {
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "hocketCommSetQuantised"), out);
  if (on != 0 && on != 1)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "hocketCommSetQuantised: %d: give 1 to switch it on, 0 to switch it off", on),
               out);
  if (on) HK_TRY(hk_call_may_quantise(comm, "hocketCommSetQuantised"), out);
  comm->numerics.quantises = (uint8_t)(1 + on);
out:
  return (ncclResult_t)rc;
}

/* Ends the operations under way on the communicator, on all of its ranks; it can still be a parent. */
static hk_status api_comm_revoke(ncclComm_t c, const char *who) {
  if (atomic_load(&c->health.progress) == HK_IN_PROGRESS)
    return HK_FAIL(HK_ERR_USAGE, "%s: the communicator's init is not finished: use ncclCommAbort to end it", who);
  if (atomic_load(&c->health.finalized)) return HK_FAIL(HK_ERR_USAGE, "%s: ncclCommFinalize was called on it", who);
  (void)hk_group_drop(c, who);
  if (!(atomic_fetch_or(&c->health.revoked, HK_REVOKED_HERE) & HK_REVOKED_HERE)) {
    char text[96];
    snprintf(text, sizeof text, "%s was called on this rank", who);
    hk_comm_fail(c, HK_ERR_USAGE, text);
    hk_event e = {.kind = HK_EVENT_REVOKE, .rank = c->rank};
    snprintf(e.text, sizeof e.text, "%s", who);
    hk_bootstrap_announce(c->bootstrap, &e);
  }
  return hk_leave_wait(c, who, c->settings->LEAVE_TIMEOUT);
}

HK_API(ncclResult_t, ncclCommShrink,
       (ncclComm_t comm, int *excludeRanksList, int excludeRanksCount, ncclComm_t *newcomm, ncclConfig_t *config,
        int shrinkFlags)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  hk_init how = {.nexclude = excludeRanksCount};
  bool abort_parent = shrinkFlags & NCCL_SHRINK_ABORT;
  HK_TRY(abort_parent ? hk_comm_check(comm, "ncclCommShrink") : hk_comm_check_parent(comm, "ncclCommShrink"), out);
  if (!newcomm) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclCommShrink: newcomm is NULL"), refuse);
  *newcomm = NULL;
  HK_TRY(api_comm_check_excluded(comm, excludeRanksList, excludeRanksCount), refuse);
  if (abort_parent) {
    HK_TRY(api_comm_revoke(comm, "ncclCommShrink with NCCL_SHRINK_ABORT"), refuse);
  }
  how.exclude = malloc((size_t)excludeRanksCount * sizeof *how.exclude);
  if (!how.exclude) {
    how.parent = comm;
    how.exclude = excludeRanksList;
    return (ncclResult_t)hk_group_report_unstarted(
        &how, HK_FAIL_ERRNO("no memory for %d ranks to exclude", excludeRanksCount));
  }
  memcpy(how.exclude, excludeRanksList, (size_t)excludeRanksCount * sizeof *how.exclude);
  return (ncclResult_t)api_comm_init_child(comm, newcomm, config, comm->options.shrink_share, &how);
refuse: /* this rank may have no valid list, so its call is named by number only */
  return (ncclResult_t)hk_group_report_unstarted(&(hk_init){.parent = comm, .no_list = true}, rc);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclCommFinalize, (ncclComm_t comm)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check_usable(comm, "ncclCommFinalize"), out);
  HK_TRY(hk_group_refuse(comm, "ncclCommFinalize"), out);
  atomic_store(&comm->health.finalized, true);
  HK_TRY(hk_leave_in_peace(comm, "ncclCommFinalize"), out); /* operations that streams still run */
  if (comm->backend->drain) comm->backend->drain(comm);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclCommDestroy, (ncclComm_t comm)) {
  HK_UNCANCELLED;
  /* it belongs to a parent process; this copy ends with this process */
  if (!comm || hk_comm_inherited(comm)) return ncclSuccess;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check(comm, "ncclCommDestroy"), out);
  HK_TRY(hk_group_refuse(comm, "ncclCommDestroy"), out);
  HK_TRY(hk_leave_begin(comm, "ncclCommDestroy", HK_CLOSING_DESTROY), out);
  rc = hk_leave_in_peace(comm, "ncclCommDestroy");
  rc = hk_leave_end(comm, "ncclCommDestroy", rc);
out:
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclCommAbort, (ncclComm_t comm)) {
  HK_UNCANCELLED;
  /* it belongs to a parent process; this copy ends with this process */
  if (!comm || hk_comm_inherited(comm)) return ncclSuccess;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check(comm, "ncclCommAbort"), out);
  if (hk_group_drop(comm, "ncclCommAbort")) goto out;
  HK_TRY(hk_leave_begin(comm, "ncclCommAbort", HK_CLOSING_ABORT), out);
  bool alive = atomic_load(&comm->health.progress) == HK_OK;
  int before = atomic_load(&comm->health.failure);
  hk_comm_fail(comm, HK_ERR_REMOTE, "ncclCommAbort was called on this rank");
  /* also after a failure, to announce that this rank cannot be a member of a child any more */
  if (alive && comm->bootstrap) {
    hk_event e = {.kind = HK_EVENT_ABORT, .rank = comm->rank, .code = (int32_t)before};
    hk_bootstrap_announce(comm->bootstrap, &e);
  }
  rc = hk_leave_end(comm, "ncclCommAbort", HK_OK);
out:
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclCommRevoke, (ncclComm_t comm, int revokeFlags)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check(comm, "ncclCommRevoke"), out);
  if (revokeFlags != NCCL_REVOKE_DEFAULT)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclCommRevoke: flags %d: only NCCL_REVOKE_DEFAULT is defined", revokeFlags),
               out);
  if (atomic_load(&comm->health.finalized))
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT,
                       "ncclCommRevoke: ncclCommFinalize was called on this communicator: destroy or abort it"),
               out);
  rc = api_comm_revoke(comm, "ncclCommRevoke");
out:
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t comm, ncclResult_t *asyncError)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  HK_TRY(hk_comm_check(comm, "ncclCommGetAsyncError"), out);
  if (!asyncError) HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclCommGetAsyncError: asyncError is NULL"), out);
  hk_status found = comm->backend->poll_health ? comm->backend->poll_health(comm) : HK_OK;
  if (found != HK_OK) (void)hk_comm_failed(comm, found);
  hk_status failure = hk_failure_settled(comm); /* not before all ranks agree on it */
  /* A communicator that this rank revoked reports no error: users of NCCL poll for that. */
  if (atomic_load(&comm->health.revoked) & HK_REVOKED_HERE) failure = HK_OK;
  if (failure != HK_OK) hk_error_adopt(comm->health.text); /* for ncclGetLastError(NULL) */
  *asyncError = (ncclResult_t)(failure != HK_OK ? (int)failure : atomic_load(&comm->health.progress));
out:
  return (ncclResult_t)rc;
}

/* The three queries share their checks. */
static ncclResult_t api_comm_answer(ncclComm_t comm, int *to, const char *who, int nranks_rank_device) {
  hk_status rc = hk_comm_check(comm, who);
  if (rc == HK_OK && !to) rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: the place for the answer is NULL", who);
  if (rc == HK_OK && atomic_load(&comm->health.progress) == HK_IN_PROGRESS)
    rc = HK_FAIL(HK_ERR_USAGE, "%s: the communicator's init is not finished", who);
  if (rc == HK_OK)
    *to = nranks_rank_device == 0   ? comm->nranks
          : nranks_rank_device == 1 ? comm->rank
          : comm->device < 0        ? 0
                                    : comm->device;
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclCommCount, (const ncclComm_t comm, int *count)) {
  return api_comm_answer(comm, count, "ncclCommCount", 0);
}
HK_API(ncclResult_t, ncclCommUserRank, (const ncclComm_t comm, int *rank)) {
  return api_comm_answer(comm, rank, "ncclCommUserRank", 1);
}
/* On host memory every rank's device is 0: programs use the value as an index. */
HK_API(ncclResult_t, ncclCommCuDevice, (const ncclComm_t comm, int *device)) {
  return api_comm_answer(comm, device, "ncclCommCuDevice", 2);
}
