/* SPDX-License-Identifier: Apache-2.0 */
/* Joins a communicator without a parent, or reports to the other ranks that this rank cannot join. */
#include <stdio.h>
#include "../base/param.h"
#include "../boot/bootstrap.h"
#include "../core/comm.h"

/* With NCCL_COMM_ID, its id takes the place of those that were given; it is kept in `env`. */
static hk_status join_choose_ids(const hk_settings *settings, hk_init *how, ncclUniqueId *env) {
  if (!settings->COMM_ID || how->grows) return HK_OK;
  how->ids = env;
  how->nids = 1;
  return hk_bootstrap_env_id(settings, env, how->rank);
}

hk_status hk_comm_join(ncclComm_t c, const hk_init *given, const hk_bootstrap_options *o) {
  ncclUniqueId env;
  hk_init how = *given;
  hk_status rc = join_choose_ids(c->settings, &how, &env);
  return rc == HK_OK ? hk_bootstrap_join(&c->bootstrap, how.ids, how.nids, o) : rc;
}

void hk_comm_report_abort(const hk_settings *settings, const hk_init *given) {
  ncclUniqueId env;
  hk_init how = *given;
  char cause[HK_ERROR_TEXT];
  snprintf(cause, sizeof cause, "%s", hk_last_error());
  hk_status rc = join_choose_ids(settings, &how, &env);
  hk_error_adopt(cause);
  if (rc == HK_OK) hk_bootstrap_report_abort(settings, how.ids, how.nids, how.rank, how.nranks);
}
