/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory and windows in the API, and the addresses of windows for users' kernels. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/sysinfo.h>
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../comm/children.h"
#include "../comm/group.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../failure/failure.h"
#include "../rma/registration.h"
#include "../rma/rma.h"
#include "../rma/windows.h"

/* A size that no memory of this host or its GPUs can have. */
static hk_status api_register_check_memory(const char *who, ncclComm_t c, const void *buff, size_t size) {
  struct sysinfo host;
  if (!buff && size) return HK_FAIL(HK_ERR_ARGUMENT, "%s: buff is NULL, and size is %zu", who, size);
  if (size > UINTPTR_MAX - (uintptr_t)buff)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: size %zu from %p on is more than there are addresses", who, size, buff);
  if (c->device < 0 && sysinfo(&host) == 0 && size / host.mem_unit > host.totalram + host.totalswap)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: size %zu is more than all memory of this host (%llu MiB): give bytes", who,
                   size, (unsigned long long)(host.totalram + host.totalswap) * host.mem_unit >> 20);
  return HK_OK;
}

HK_API(ncclResult_t, ncclCommRegister, (const ncclComm_t comm, void *buff, size_t size, void **handle)) {
  HK_UNCANCELLED;
  hk_status rc = hk_comm_check(comm, "ncclCommRegister");
  if (rc == HK_OK && !handle) rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclCommRegister: handle is NULL");
  if (rc == HK_OK) rc = api_register_check_memory("ncclCommRegister", comm, buff, size);
  if (rc == HK_OK) rc = hk_registration_add(&(hk_registration){.comm = comm, .base = buff, .bytes = size}, handle);
  return (ncclResult_t)rc;
}

/* Also accepts windows: PyTorch passes every handle here. */
HK_API(ncclResult_t, ncclCommDeregister, (const ncclComm_t comm, void *handle)) {
  HK_UNCANCELLED;
  const hk_status rc = hk_comm_check(comm, "ncclCommDeregister");
  return (ncclResult_t)(rc == HK_OK ? hk_registration_drop("ncclCommDeregister", comm, handle) : rc);
}

/* ---- windows ---- */

typedef struct registering {
  hk_registration window;
  ncclWindow_t *out;
} registering;

static hk_status api_register_map_and_add(ncclComm_t c, void *arg) {
  registering *a = arg;
  const hk_window_ops *ops = c->backend->windows;
  hk_registration *w = &a->window;
  void *handle = NULL;
  HK_OR_RETURN(hk_task_agree(c, "ncclCommWindowRegister"));
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "ncclCommWindowRegister");
  hk_status rc = ops->add(c, w->base, w->bytes, w->flags, &w->symmetric);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_IDLE, NULL);
  if (rc == HK_OK && w->symmetric && c->backend->rma_begin && hk_rma_supported(c)) rc = c->backend->rma_begin(c);
  if (rc != HK_OK) return hk_comm_failed(c, rc);
  if (!w->symmetric) return HK_OK;
  rc = hk_registration_add(w, &handle);
  if (rc != HK_OK) ops->drop(c, w->symmetric);
  *a->out = handle;
  return hk_comm_failed(c, rc); /* the other ranks have the window */
}

/* On host memory ranks do not wait for each other. So a refused window still counts as a number, and the other ranks
 * are informed that this rank does not have it. */
static void register_refuse_here(ncclComm_t c, int flags) {
  if (!(flags & NCCL_WIN_COLL_SYMMETRIC)) return;
  pthread_mutex_lock(&c->health.lock);
  const uint64_t number = c->windows + 1;
  pthread_mutex_unlock(&c->health.lock);
  /* Before the number is counted, because a put of another rank waits until then. */
  if (atomic_load(&c->health.progress) == HK_OK) hk_children_refuse_call(c, HK_CALL_WINDOW, number);
  pthread_mutex_lock(&c->health.lock);
  c->windows++;
  pthread_mutex_unlock(&c->health.lock);
}

static hk_status register_here(const hk_registration *window, ncclWindow_t *win) {
  hk_status rc = HK_OK;
  ncclComm_t c = window->comm;
  char words[HK_EVENT_TEXT];
  void *handle = NULL;
  size_t bytes;
  HK_TRY(hk_registration_add(window, &handle), out);
  uint64_t number = hk_registration_number(c, handle, &bytes);
  if (number && hk_children_refused_call(c, HK_CALL_WINDOW, number, words)) {
    (void)hk_registration_drop("ncclCommWindowRegister", c, handle);
    return HK_FAIL(HK_ERR_REMOTE, "%s", words);
  }
  *win = handle;
  return HK_OK;
out:
  register_refuse_here(c, window->flags);
  return rc;
}

static hk_status api_register_check_window(ncclComm_t c, const void *buff, size_t size, const ncclWindow_t *win,
                                           int flags) {
  const int known = NCCL_WIN_COLL_SYMMETRIC | NCCL_WIN_STRICT_ORDERING | NCCL_WIN_GIN_ONLY; /* there is no CFT */
  if (!win || !buff || !size)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclCommWindowRegister: %s",
                   !win    ? "win is NULL: it gets the window"
                   : !buff ? "buff is NULL"
                           : "size is 0: give at least one byte");
  HK_OR_RETURN(api_register_check_memory("ncclCommWindowRegister", c, buff, size));
  if (flags & ~known || (flags & NCCL_WIN_COLL_SYMMETRIC && flags & NCCL_WIN_GIN_ONLY))
    return HK_FAIL(HK_ERR_ARGUMENT,
                   "ncclCommWindowRegister: flags 0x%x: give NCCL_WIN_DEFAULT, NCCL_WIN_COLL_SYMMETRIC or "
                   "NCCL_WIN_GIN_ONLY, perhaps with NCCL_WIN_STRICT_ORDERING",
                   (unsigned)flags);
  if ((uintptr_t)buff % NCCL_WIN_REQUIRED_ALIGNMENT)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclCommWindowRegister: %p is not aligned to %d bytes", buff,
                   NCCL_WIN_REQUIRED_ALIGNMENT);
  return HK_OK;
}

HK_API(ncclResult_t, ncclCommWindowRegister,
       (ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win, int winFlags)) {
  HK_UNCANCELLED;
  if (win) *win = NULL;
  const bool together = comm && comm->backend && comm->backend->windows;
  hk_status rc = together ? hk_comm_check_usable(comm, "ncclCommWindowRegister")
                          : hk_comm_check(comm, "ncclCommWindowRegister");
  if (rc != HK_OK) return (ncclResult_t)hk_group_remember(rc);
  rc = api_register_check_window(comm, buff, size, win, winFlags);
  if (rc != HK_OK && together) return (ncclResult_t)hk_group_refuse_task(comm, rc);
  if (rc != HK_OK) {
    register_refuse_here(comm, winFlags);
    return (ncclResult_t)hk_group_remember(rc);
  }
  const hk_registration window = {.comm = comm, .base = buff, .bytes = size, .flags = winFlags, .is_window = true};
  if (!together) return (ncclResult_t)register_here(&window, win);
  registering *a = malloc(sizeof *a);
  if (!a) return (ncclResult_t)hk_group_refuse_task(comm, HK_FAIL_ERRNO("no memory for a window"));
  *a = (registering){window, win};
  return (ncclResult_t)hk_group_submit_task(comm, api_register_map_and_add, a);
}

HK_API(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t comm, ncclWindow_t win)) {
  HK_UNCANCELLED;
  const hk_status rc = hk_comm_check(comm, "ncclCommWindowDeregister");
  return (ncclResult_t)(rc == HK_OK ? hk_registration_drop("ncclCommWindowDeregister", comm, win) : rc);
}

/* ---- addresses in windows: they stay valid as long as the window is registered ---- */

/* As hk_registration_find, for an address of device code: the offset is inside the window. */
static hk_status api_register_find_at(const char *who, ncclWindow_t win, size_t offset, const void *out,
                                      const hk_registration **found) {
  hk_status rc = hk_registration_find(who, win, out, found);
  if (rc == HK_OK && offset >= (*found)->bytes)
    rc = HK_FAIL(HK_ERR_ARGUMENT, "%s: offset %zu of a window of %zu bytes", who, offset, (*found)->bytes);
  if (rc == HK_OK && (*found)->flags & NCCL_WIN_GIN_ONLY)
    rc = HK_FAIL(HK_ERR_USAGE, "%s: the window was registered with NCCL_WIN_GIN_ONLY: it has no addresses", who);
  return rc;
}

HK_API(ncclResult_t, ncclWinGetUserPtr, (ncclComm_t comm, ncclWindow_t win, void **outUserPtr)) {
  const hk_registration *r = NULL;
  hk_status rc = hk_comm_check(comm, "ncclWinGetUserPtr");
  if (rc == HK_OK) rc = hk_registration_find("ncclWinGetUserPtr", win, outUserPtr, &r);
  if (rc == HK_OK) *outUserPtr = r->base;
  return (ncclResult_t)rc;
}

/* On host memory a team is one rank. */
static void *api_register_address(const hk_registration *r, int lsa_rank, size_t offset) {
  return (r->symmetric ? hk_symmetric_at(r->symmetric, lsa_rank) : (char *)r->base) + offset;
}

HK_API(ncclResult_t, ncclGetLsaDevicePointer, (ncclWindow_t win, size_t offset, int lsaRank, void **outPtr)) {
  const hk_registration *r = NULL;
  hk_status rc = api_register_find_at("ncclGetLsaDevicePointer", win, offset, outPtr, &r);
  if (rc == HK_OK && (lsaRank < 0 || lsaRank >= r->comm->lsa.ranks))
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclGetLsaDevicePointer: rank %d of an LSA team of %d ranks", lsaRank,
                 r->comm->lsa.ranks);
  if (rc == HK_OK) *outPtr = api_register_address(r, lsaRank, offset);
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclGetPeerDevicePointer, (ncclWindow_t win, size_t offset, int peer, void **outPtr)) {
  const hk_registration *r = NULL;
  hk_status rc = api_register_find_at("ncclGetPeerDevicePointer", win, offset, outPtr, &r);
  if (rc == HK_OK && (peer < 0 || peer >= r->comm->nranks))
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclGetPeerDevicePointer: rank %d of %d", peer, r->comm->nranks);
  if (rc != HK_OK) return (ncclResult_t)rc;
  int lsa_rank = hk_lsa_rank(r->comm, peer);
  *outPtr = lsa_rank < 0 ? NULL : api_register_address(r, lsa_rank, offset);
  return ncclSuccess;
}

static void *api_register_multimem_at(const hk_registration *r, char *base, size_t offset) {
  return base && r->symmetric ? base + (size_t)r->symmetric->image.multicast_4k * 4096 + offset : NULL;
}

/* The first call on a communicator creates the memory, so all ranks make it together: a rank whose arguments are wrong
 * takes part, and is refused afterwards. */
HK_API(ncclResult_t, ncclGetLsaMultimemDevicePointer, (ncclWindow_t win, size_t offset, void **outPtr)) {
  HK_UNCANCELLED;
  const hk_registration *r = NULL;
  char *base = NULL;
  const hk_status found = api_register_find_at("ncclGetLsaMultimemDevicePointer", win, offset, outPtr, &r);
  if (r && r->comm->lsa.multimem) {
    hk_status rc = hk_comm_check_usable(r->comm, "ncclGetLsaMultimemDevicePointer");
    if (rc == HK_OK) rc = r->comm->backend->windows->multicast(r->comm, hk_lsa_team(r->comm), &base);
    if (rc != HK_OK) return (ncclResult_t)hk_comm_failed(r->comm, rc);
  }
  if (found == HK_OK) *outPtr = api_register_multimem_at(r, base, offset);
  return (ncclResult_t)found;
}

HK_API(ncclResult_t, ncclGetMultimemDevicePointer,
       (ncclWindow_t win, size_t offset, ncclMultimemHandle_t multimem, void **outPtr)) {
  const hk_registration *r = NULL;
  if (!multimem.mcBasePtr)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclGetMultimemDevicePointer: the multimem handle is empty");
  hk_status rc = api_register_find_at("ncclGetMultimemDevicePointer", win, offset, outPtr, &r);
  if (rc == HK_OK) *outPtr = api_register_multimem_at(r, r->comm->lsa.multimem ? multimem.mcBasePtr : NULL, offset);
  return (ncclResult_t)rc;
}

/* CFT needs a Blackwell GPU and a driver that knows it: elsewhere NCCL refuses these, too. */
static ncclResult_t api_register_no_cft(const char *who) {
  return (ncclResult_t)HK_FAIL(HK_ERR_USAGE, "%s: CFT needs a Blackwell GPU and is not part of this version of Hocket",
                               who);
}
HK_API(ncclResult_t, ncclGetMultimemDeviceLeInfo,
       (ncclWindow_t win, size_t offset, ncclCftLeId *leId, size_t *leOffset)) {
  (void)win, (void)offset, (void)leId, (void)leOffset;
  return api_register_no_cft("ncclGetMultimemDeviceLeInfo");
}
HK_API(ncclResult_t, ncclGetPeerDeviceLeInfo,
       (ncclWindow_t win, size_t offset, int peerWorld, ncclCftLeId *leId, size_t *leOffset)) {
  (void)win, (void)offset, (void)peerWorld, (void)leId, (void)leOffset;
  return api_register_no_cft("ncclGetPeerDeviceLeInfo");
}
HK_API(ncclResult_t, ncclGetCftDeviceLeInfo,
       (ncclWindow_t win, size_t offset, int peerCft, ncclTeam_t cftTeam, ncclCftLeId *leId, size_t *leOffset)) {
  (void)win, (void)offset, (void)peerCft, (void)cftTeam, (void)leId, (void)leOffset;
  return api_register_no_cft("ncclGetCftDeviceLeInfo");
}
