/* SPDX-License-Identifier: Apache-2.0 */
/* ncclDevCommCreate: makes the communicator's data for users' kernels, in the layout of the version for which they were
 * compiled. */
#include <stdlib.h>
#include <string.h>
#include "../base/param.h"
#include "../base/thread.h"
#include "../boot/bootstrap.h"
#include "../comm/group.h"
#include "../core/api.h"
#include "../core/backend.h"
#include "../failure/failure.h"
#include "../rma/windows.h"
#include "device_abi.h"

enum { UNIT = 128, COUNT_MAX = 1 << 24 };

/* 2.28 has no version in its requirements; here it is 22809. */
static const hk_device_comm_layout layouts[] = {
    {22809, 22809, .bytes = 200, 0, .flat = 48, .multimem = 112, .barrier = 120, .window = 72},
    {22902, 22903, .bytes = 200, 0, .flat = 48, .multimem = 112, .barrier = 120, .window = 72},
    {22905, 22907, .bytes = 224, 0, .flat = 48, .multimem = 112, .barrier = 120, .window = 72},
    {23000, 23007, .bytes = 240, 8, .flat = 56, .multimem = 120, .barrier = 128, .window = 32},
    {23100, 23203, .bytes = 248, 8, .flat = 48, .multimem = 72, .barrier = 80, .cft = 204}};
static const hk_device_comm_layout *const newest = &layouts[HK_ARRAY_LENGTH(layouts) - 1];

/* ---- requirements ---- */

static bool device_comm_plausible(int32_t count) { return count >= 0 && count <= COUNT_MAX; }

/* Reads a struct without a magic number as 2.28's, if its content allows that. Newer structs begin with a size, and
 * 2.28's with an address. */
static bool device_comm_read_2_28(const void *given, hk_requirements *r) {
  hk_requirements_2_28 old;
  unsigned char flags[2];
  memcpy(&flags[0], (const char *)given + offsetof(hk_requirements_2_28, lsa_multimem), 1);
  memcpy(&flags[1], (const char *)given + offsetof(hk_requirements_2_28, gin), 1);
  if (flags[0] > 1 || flags[1] > 1) return false;
  memcpy(&old, given, sizeof old);
  *r = (hk_requirements){.version = 22809,
                         .resources = old.resources,
                         .teams = old.teams,
                         .lsa_multimem = old.lsa_multimem,
                         .barriers = old.barriers,
                         .lsa_barriers = old.lsa_barriers,
                         .rail_gin_barriers = old.rail_gin_barriers,
                         .ll_blocks = old.ll_blocks,
                         .ll_slots = old.ll_slots,
                         .gin = old.gin,
                         .gin_signals = old.gin_signals,
                         .gin_counters = old.gin_counters};
  return (((uintptr_t)old.resources | (uintptr_t)old.teams) & 7) == 0 &&
         (!old.resources || (uintptr_t)old.resources >= 4096) && device_comm_plausible(old.barriers) &&
         device_comm_plausible(old.lsa_barriers) && device_comm_plausible(old.ll_blocks) &&
         device_comm_plausible(old.ll_slots) && device_comm_plausible(old.gin_signals) &&
         device_comm_plausible(old.gin_counters);
}

static hk_status device_comm_read_requirements(ncclComm_t c, const ncclDevCommRequirements_t *given, hk_requirements *r,
                                               const hk_device_comm_layout **layout) {
  size_t size;
  unsigned magic;
  memset(r, 0, sizeof *r);
  memcpy(&size, given, sizeof size);
  memcpy(&magic, (const char *)given + offsetof(hk_requirements, magic), sizeof magic);
  *layout = layouts;
  if (magic != NCCL_API_MAGIC) {
    if (device_comm_read_2_28(given, r)) return HK_OK;
    return HK_FAIL(HK_ERR_USAGE, "ncclDevCommCreate: magic 0x%x: start from NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER",
                   magic);
  }
  memcpy(r, given, size < sizeof *r ? size : sizeof *r);
  for (*layout = layouts + 1; *layout <= newest; ++*layout)
    if (r->version >= (*layout)->from && r->version <= (*layout)->to) break;
  if (*layout > newest)
    return HK_FAIL(HK_ERR_USAGE,
                   "ncclDevCommCreate: requirements of version %u: known are 2.28, 2.29.2, 2.29.3, 2.29.5 to 2.29.7, "
                   "2.30.0 to 2.30.7 and 2.31.0 to 2.32.3",
                   r->version);
  if ((r->version >= 23100 && r->runtime_version) || c->settings->DEV_API_JIT) {
    *layout = newest;
    r->version = newest->to;
  }
  return HK_OK;
}

/* Refuses requests for GIN: kernels can access only ranks of the LSA team. */
static hk_status device_comm_check_network(const hk_requirements *r) {
  const bool old = r->version < 22905; /* before 2.29.5 `barriers` also meant barriers of the LSA team */
  bool gin = r->gin || r->gin_signals || r->gin_counters || r->gin_connection || r->gin_type || r->rail_gin_barriers ||
             r->world_gin_barriers || (!old && r->barriers);
  for (const hk_resource_request *w = r->resources; w; w = w->next) gin = gin || w->gin_signals || w->gin_counters;
  if (gin)
    return HK_FAIL(old ? HK_ERR_USAGE : HK_ERR_ARGUMENT,
                   "ncclDevCommCreate: GIN (kernels that use the network) is not there (ncclCommQueryProperties gives "
                   "ginType = NCCL_GIN_TYPE_NONE): ask for lsaBarrierCount, and for no GIN barriers, signals, counters "
                   "or connections");
  if (r->cft_caps || r->cft_barriers)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclDevCommCreate: there is no CFT (ncclCommQueryProperties gives cftSupport = "
                                    "false): leave cftCaps and cftBarrierCount 0");
  return HK_OK;
}

static hk_status device_comm_check_teams(ncclComm_t c, const hk_requirements *r) {
  const ncclTeam_t lsa = hk_lsa_team(c);
  bool multimem = r->lsa_multimem;
  for (const hk_team_request *w = r->teams; w; w = w->next) {
    const ncclTeam_t *t = &w->team;
    if (t->nRanks < 1 || t->rank < 0 || t->rank >= t->nRanks || t->stride < 1 ||
        (int64_t)lsa.rank - (int64_t)t->rank * t->stride < 0 ||
        (int64_t)lsa.rank + (int64_t)(t->nRanks - 1 - t->rank) * t->stride >= lsa.nRanks)
      return HK_FAIL(
          HK_ERR_ARGUMENT,
          "ncclDevCommCreate: a team of %d ranks, stride %d, in which this rank is %d, is no part of the LSA "
          "team of %d ranks, in which it is %d",
          t->nRanks, t->stride, t->rank, lsa.nRanks, lsa.rank);
    multimem = multimem || w->multimem;
  }
  if (multimem && !c->lsa.multimem)
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclDevCommCreate: multicast memory needs NVLS, which is not there "
                                    "(ncclCommQueryProperties gives multimemSupport = false)");
  return HK_OK;
}

static hk_status device_comm_check(ncclComm_t c, const hk_requirements *r) {
  if (!c->lsa.kernels)
    return HK_FAIL(HK_ERR_USAGE, "ncclDevCommCreate: kernels cannot communicate on this communicator, %s",
                   c->device < 0              ? "as it works on host memory"
                   : c->lsa.ranks < c->nranks ? "as loads and stores do not reach all of its ranks: they are on "
                                                "several hosts, or have no P2P"
                                              : "as GPU memory does not go to other processes by file descriptor");
  if (!device_comm_plausible(r->barriers) || !device_comm_plausible(r->lsa_barriers) ||
      !device_comm_plausible(r->ll_blocks) || !device_comm_plausible(r->ll_slots))
    return HK_FAIL(HK_ERR_ARGUMENT, "ncclDevCommCreate: %d barriers, %d LSA barriers, %d LL blocks with %d slots",
                   r->barriers, r->lsa_barriers, r->ll_blocks, r->ll_slots);
  for (const hk_resource_request *w = r->resources; w; w = w->next)
    if (w->bytes > (size_t)1 << 46 || w->align > (size_t)1 << 30 || (w->align & (w->align - 1)))
      return HK_FAIL(HK_ERR_ARGUMENT, "ncclDevCommCreate: a resource of %zu bytes, aligned to %zu", w->bytes, w->align);
  hk_status rc = device_comm_check_network(r);
  return rc == HK_OK ? device_comm_check_teams(c, r) : rc;
}

/* ---- creation ---- */

/* A copy of the lists, as the call may wait in a group. */
typedef struct creating {
  const hk_device_comm_layout *layout;
  unsigned version;
  char *out;
  int barriers;
  bool lsa_multimem;
  size_t nresources, nteams;
  hk_team_request *teams;
  hk_resource_request resources[];
} creating;

static creating *device_comm_copy_of(const hk_requirements *r, const hk_device_comm_layout *layout, void *out) {
  size_t nresources = 0, nteams = 0;
  for (const hk_resource_request *w = r->resources; w; w = w->next) nresources++;
  for (const hk_team_request *w = r->teams; w; w = w->next) nteams++;
  creating *a = malloc(sizeof *a + nresources * sizeof *a->resources + nteams * sizeof *a->teams);
  if (!a) return NULL;
  *a = (creating){.layout = layout,
                  .version = r->version,
                  .out = out,
                  .barriers = r->lsa_barriers,
                  .lsa_multimem = r->lsa_multimem,
                  .teams = (hk_team_request *)(void *)(a->resources + nresources)};
  if (r->version < 22905 && r->barriers > a->barriers) a->barriers = r->barriers;
  for (const hk_resource_request *w = r->resources; w; w = w->next) a->resources[a->nresources++] = *w;
  for (const hk_team_request *w = r->teams; w; w = w->next) a->teams[a->nteams++] = *w;
  return a;
}

/* Offsets in the resource buffer, and its size.  The LSA barriers come first. */
static size_t device_comm_arrange(const creating *a, int lsa_ranks, bool assign) {
  size_t at = hk_barrier_bytes(a->barriers, lsa_ranks);
  for (size_t i = 0; i < a->nresources; i++) {
    const hk_resource_request *w = &a->resources[i];
    at = hk_round_up(at, w->align > UNIT ? w->align : UNIT);
    if (assign && w->handle) *w->handle = (uint32_t)(at / UNIT);
    at += w->bytes;
  }
  return at;
}

static void device_comm_fill(ncclComm_t c, const creating *a, void *table, const hk_symmetric *w, void *multimem) {
  const hk_device_comm_layout *l = a->layout;
  const ncclTeam_t lsa = hk_lsa_team(c);
  const hk_device_comm_head head = {.rank = c->rank,
                                    .nranks = c->nranks,
                                    .nranks_rcp = hk_reciprocal((uint32_t)c->nranks),
                                    .lsa_rank = lsa.rank,
                                    .lsa_ranks = lsa.nRanks,
                                    .lsa_ranks_rcp = hk_reciprocal((uint32_t)lsa.nRanks),
                                    .table = table,
                                    .resources = w ? w->handle : NULL};
  const hk_device_handle barrier = {.count = a->barriers};
  const uint32_t alone[HK_DEVICE_COMM_CFT_WORDS] = {0, 1, 0, 1, hk_reciprocal(1), UINT32_MAX, UINT32_MAX};
  memset(a->out, 0, l->bytes);
  if (l->head) {
    memcpy(a->out, &(unsigned){NCCL_API_MAGIC}, sizeof(unsigned));
    memcpy(a->out + sizeof(unsigned), &a->version, sizeof a->version);
  }
  memcpy(a->out + l->head, &head, sizeof head);
  if (w && l->window) {
    memcpy(a->out + l->flat - offsetof(hk_device_window, flat), &w->image, l->window);
  } else if (w) {
    memcpy(a->out + l->flat, &w->image.flat, sizeof w->image.flat);
    memcpy(a->out + l->flat + sizeof w->image.flat, &w->image.stride_4g, 2 * sizeof w->image.stride_4g);
  }
  memcpy(a->out + l->multimem, &multimem, sizeof multimem);
  memcpy(a->out + l->barrier, &barrier, sizeof barrier);
  if (l->cft) memcpy(a->out + l->cft, alone, sizeof alone);
}

/* The multicast memory of all teams; *lsa: the LSA team's. */
static hk_status device_comm_get_multicast(ncclComm_t c, creating *a, char **lsa) {
  char *base = NULL;
  for (size_t i = 0; i <= a->nteams; i++) {
    const bool wanted = i < a->nteams ? a->teams[i].multimem : a->lsa_multimem;
    if (!wanted) continue;
    HK_OR_RETURN(c->backend->windows->multicast(c, i < a->nteams ? a->teams[i].team : hk_lsa_team(c), &base));
    if (!base)
      return HK_FAIL(HK_ERR_CUDA, "ncclDevCommCreate: some rank's GPU has no multicast memory for its team (its log "
                                  "says why)");
    if (i == a->nteams)
      *lsa = base;
    else if (a->teams[i].handle)
      a->teams[i].handle->mcBasePtr = base;
  }
  return HK_OK;
}

static hk_status device_comm_create(ncclComm_t c, void *arg) {
  hk_status rc = HK_OK;
  creating *a = arg;
  hk_symmetric *window = NULL;
  char *multimem = NULL;
  void *table = NULL;
  bool agreed = true; /* all ranks get the same result, also if CUDA fails on one */
  HK_OR_RETURN(hk_task_agree(c, "ncclDevCommCreate"));
  struct hk_device_comm *d = calloc(1, sizeof *d);
  const size_t bytes = device_comm_arrange(a, c->lsa.ranks, false);
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_INIT, "ncclDevCommCreate");
  if (!d) HK_GIVE_UP(HK_FAIL_ERRNO("no memory for a device communicator"), out);
  if (bytes) HK_TRY(c->backend->windows->add_memory(c, bytes, &window), out);
  if (bytes && !window)
    HK_GIVE_UP(HK_FAIL(HK_ERR_CUDA,
                       "ncclDevCommCreate: %zu bytes for barriers and resources: not on all ranks (their logs "
                       "say why)",
                       bytes),
               out);
  HK_TRY(device_comm_get_multicast(c, a, &multimem), out);
  agreed = false;
  HK_TRY(c->backend->windows->table(c, &table), out);
  HK_TRY(hk_bootstrap_barrier(c->bootstrap), out);
  (void)device_comm_arrange(a, c->lsa.ranks, true);
  device_comm_fill(c, a, table, window, multimem);
  d->window = window;
  pthread_mutex_lock(&c->health.lock);
  d->next = c->device_comms;
  c->device_comms = d;
  pthread_mutex_unlock(&c->health.lock);
out:
  hk_bootstrap_begin(c->bootstrap, HK_PHASE_IDLE, NULL);
  if (rc == HK_OK) return HK_OK;
  if (window) c->backend->windows->drop(c, window);
  free(d);
  return rc == HK_ERR_CUDA && agreed ? rc : hk_comm_failed(c, rc);
}

HK_API(ncclResult_t, ncclDevCommCreate, (ncclComm_t c, ncclDevCommRequirements_t const *reqs, ncclDevComm_t *out)) {
  HK_UNCANCELLED;
  hk_status rc = HK_OK;
  hk_requirements r;
  const hk_device_comm_layout *layout;
  HK_TRY(hk_comm_check_usable(c, "ncclDevCommCreate"), out);
  if (!reqs || !out)
    HK_GIVE_UP(HK_FAIL(HK_ERR_ARGUMENT, "ncclDevCommCreate: requirements %p, device communicator %p",
                       (const void *)reqs, (void *)out),
               refuse);
  HK_TRY(device_comm_read_requirements(c, reqs, &r, &layout), refuse);
  HK_TRY(device_comm_check(c, &r), refuse);
  creating *a = device_comm_copy_of(&r, layout, out);
  if (a) return (ncclResult_t)hk_group_submit_task(c, device_comm_create, a);
  rc = HK_FAIL_ERRNO("no memory for a device communicator");
refuse:
  return (ncclResult_t)hk_group_refuse_task(c, rc);
out:
  return (ncclResult_t)hk_group_remember(rc);
}

HK_API(ncclResult_t, ncclDevCommDestroy, (ncclComm_t c, ncclDevComm_t const *given)) {
  HK_UNCANCELLED;
  hk_device_comm_head head;
  unsigned magic;
  hk_status rc = hk_comm_check(c, "ncclDevCommDestroy");
  if (rc == HK_OK && !given) rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclDevCommDestroy: the device communicator is NULL");
  if (rc != HK_OK) return (ncclResult_t)rc;
  memcpy(&magic, given, sizeof magic);
  memcpy(&head, (const char *)given + (magic == NCCL_API_MAGIC ? newest->head : 0), sizeof head);
  pthread_mutex_lock(&c->health.lock);
  struct hk_device_comm **at = &c->device_comms, *d;
  while (*at && ((*at)->window ? (*at)->window->handle : NULL) != head.resources) at = &(*at)->next;
  d = *at;
  if (d) *at = d->next;
  pthread_mutex_unlock(&c->health.lock);
  if (d && d->window) c->backend->windows->drop(c, d->window);
  free(d);
  if (d || !head.resources) return ncclSuccess; /* as NCCL, accepts a zeroed one */
  return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT,
                               "ncclDevCommDestroy: the device communicator is not of this communicator, or is "
                               "destroyed already");
}

size_t hk_device_comm_bytes(void) { return newest->bytes; }
