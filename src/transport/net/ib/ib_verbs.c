/* SPDX-License-Identifier: Apache-2.0 */
/* Loading libibverbs, and texts for its status codes. */
#include "ib_verbs.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "../../../base/dl.h"
#include "../../../base/log.h"
#include "../../../base/param.h"
#include "../../../base/status.h"

static hk_ibv functions;

#define NEED(type, member, arguments) HK_DL_SYMBOL(hk_ibv, member, "ibv_" #member),
#define MAY(type, member, arguments) HK_DL_OPTIONAL(hk_ibv, member, "ibv_" #member),
static const hk_dl_symbol symbols[] = {HK_IBV_CALLS(NEED, MAY)};
static hk_dl library = HK_DL_LIBRARY(functions, symbols, HK_SUB_INIT | HK_SUB_NET, "InfiniBand and RoCE are off",
                                     "libibverbs.so.1", "libibverbs.so");

const hk_ibv *hk_ibv_load(char *why, size_t why_bytes) {
  const char *chosen = hk_param_str(HK_P_IBVERBS_LIB);
  if (!hk_dl_load_chosen(&library, chosen)) {
    snprintf(why, why_bytes, "%s", library.why);
    if (chosen && *chosen) HK_WARN_ONCE("NCCL_IBVERBS_LIB: %s", library.why);
    return NULL;
  }
  /* Memory that a card writes to must keep its pages when this process forks. Only the first call has an effect. */
  if (functions.fork_init) (void)functions.fork_init();
  return &functions;
}

bool hk_ibv_opens(void *api, const char *device, char *why, size_t why_bytes) {
  const hk_ibv *v = api;
  int n = 0;
  hk_ibv_device **list = v->get_device_list(&n);
  hk_ibv_context *context = NULL;
  errno = ENODEV; /* libibverbs lists only devices whose files exist */
  for (int i = 0; list && i < n && !context; i++)
    if (strcmp(list[i]->name, device) == 0) context = v->open_device(list[i]);
  if (!context)
    snprintf(why, why_bytes, "%s (%s): is its file in /dev/infiniband here, and may this user write to it",
             strerror(errno), strerrorname_np(errno));
  if (list) v->free_device_list(list);
  if (context) v->close_device(context);
  return context != NULL;
}

const char *hk_ibv_status_words(int status) {
  static const char *const words[] = {
#define WORDS(name, text) #name " (" text ")",
      HK_IBV_STATUSES(WORDS)
#undef WORDS
  };
  return status >= 0 && status < HK_IBV_WC_STATUSES ? words[status] : "an unknown status";
}
