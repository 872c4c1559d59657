/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory and windows of a communicator, and the windows of the process (registration.h). */
#include "registration.h"
#include <stdlib.h>
#include "../base/array.h"
#include "../base/fork.h"
#include "../core/backend.h"
#include "rma.h"
#include "windows.h"

/* The windows of the process: calls that take a window take no communicator. */
static pthread_mutex_t registration_lock = PTHREAD_MUTEX_INITIALIZER;
HK_FORK_GUARD(registration_lock);
static hk_registration *registration_windows;

static void registration_publish(hk_registration *r) {
  pthread_mutex_lock(&registration_lock);
  r->next_window = registration_windows;
  registration_windows = r;
  pthread_mutex_unlock(&registration_lock);
}

static void registration_withdraw(const hk_registration *r) {
  pthread_mutex_lock(&registration_lock);
  HK_LIST_REMOVE(registration_windows, r, next_window);
  pthread_mutex_unlock(&registration_lock);
}

hk_status hk_registration_add(const hk_registration *given, void **out) {
  hk_status rc = HK_OK;
  ncclComm_t c = given->comm;
  const bool symmetric = given->flags & NCCL_WIN_COLL_SYMMETRIC;
  hk_registration *r = malloc(sizeof *r);
  if (!r) return HK_FAIL_ERRNO("no memory for a registration");
  *r = *given;
  HK_TRY(c->backend->memory->add(c, r->base, r->bytes, symmetric, &r->handle), undo);
  if (symmetric && hk_rma_supported(c) && !c->backend->rma_begin && atomic_load(&c->health.progress) == HK_OK)
    HK_TRY(hk_rma_begin(c), undo_memory);
  r->user = r->symmetric ? (void *)r->symmetric->handle : r;
  /* Frameworks register from any thread, while they hold an allocator's locks. */
  pthread_mutex_lock(&c->health.lock);
  if (symmetric) r->number = ++c->windows;
  r->next = c->registrations;
  c->registrations = r;
  pthread_mutex_unlock(&c->health.lock);
  if (r->is_window) registration_publish(r);
  *out = r->user;
  return HK_OK;
undo_memory:
  if (r->handle) c->backend->memory->drop(c, r->base, r->bytes, r->handle);
undo:
  free(r);
  return rc;
}

hk_status hk_registration_drop(const char *who, ncclComm_t c, const void *handle) {
  if (!handle) return HK_OK;
  pthread_mutex_lock(&c->health.lock);
  hk_registration **at = &c->registrations;
  while (*at && (*at)->user != handle) at = &(*at)->next;
  hk_registration *r = *at;
  if (r) *at = r->next;
  pthread_mutex_unlock(&c->health.lock);
  if (!r) return HK_FAIL(HK_ERR_ARGUMENT, "%s: %p is not a registration of this communicator", who, handle);
  if (r->is_window) registration_withdraw(r);
  if (r->number) hk_rma_dropped(c);
  if (r->handle) c->backend->memory->drop(c, r->base, r->bytes, r->handle);
  if (r->symmetric) c->backend->windows->drop(c, r->symmetric);
  free(r);
  return HK_OK;
}

/* Under c->health.lock. */
static const hk_registration *registration_numbered(ncclComm_t c, uint64_t number) {
  const hk_registration *r = c->registrations;
  while (r && r->number != number) r = r->next;
  return r;
}

hk_window_state hk_registration_window(ncclComm_t c, uint64_t number, hk_window *out) {
  pthread_mutex_lock(&c->health.lock);
  const hk_registration *r = registration_numbered(c, number);
  if (r) *out = (hk_window){r->base, r->bytes};
  hk_window_state state = r ? HK_WINDOW_OPEN : number > c->windows ? HK_WINDOW_LATER : HK_WINDOW_GONE;
  pthread_mutex_unlock(&c->health.lock);
  return state;
}

hk_symmetric *hk_symmetric_window(ncclComm_t c, uint64_t number) {
  pthread_mutex_lock(&c->health.lock);
  const hk_registration *r = registration_numbered(c, number);
  hk_symmetric *w = r ? r->symmetric : NULL;
  pthread_mutex_unlock(&c->health.lock);
  return w;
}

uint64_t hk_registration_number(ncclComm_t c, ncclWindow_t win, size_t *bytes) {
  pthread_mutex_lock(&c->health.lock);
  const hk_registration *r = c->registrations;
  while (r && r->user != (const void *)win) r = r->next;
  uint64_t number = r ? r->number : 0;
  *bytes = r ? r->bytes : 0;
  pthread_mutex_unlock(&c->health.lock);
  return number;
}

void hk_device_comms_free(ncclComm_t c) {
  while (c->device_comms) {
    struct hk_device_comm *d = c->device_comms;
    c->device_comms = d->next;
    free(d);
  }
}

/* The backend has already been detached and has freed its part of them. */
void hk_registrations_free(ncclComm_t c) {
  while (c->registrations) {
    hk_registration *r = c->registrations;
    c->registrations = r->next;
    if (r->is_window) registration_withdraw(r);
    free(r);
  }
}

hk_status hk_registration_find(const char *who, ncclWindow_t win, const void *out, const hk_registration **found) {
  pthread_mutex_lock(&registration_lock);
  const hk_registration *r = registration_windows;
  while (r && r->user != (const void *)win) r = r->next_window;
  pthread_mutex_unlock(&registration_lock);
  *found = r;
  if (!r || !out)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: window %p is NULL or not a window, or the place for the answer is NULL", who,
                   (const void *)win);
  return HK_OK;
}
