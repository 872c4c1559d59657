/* SPDX-License-Identifier: Apache-2.0 */
/* Checks the variables, and the plugins and files that they name. */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "../../base/param.h"
#include "../../base/plugin.h"
#include "../../topo/topo.h"
#include "../../topo/xml.h"
#include "doctor.h"

static void env_report(void *arg, bool wrong, const char *text) {
  hk_doctor_say(arg, wrong ? HK_DOC_PROBLEM : HK_DOC_NOTE, NULL, "%s", text);
}

void hk_doctor_variables(hk_doctor *d) {
  int before = d->n;
  if (!d->live) return;
  hk_param_check(env_report, d);
  for (int i = before; i < d->n; i++)
    if (d->at[i].state == HK_DOC_PROBLEM) snprintf(d->at[i].fix, sizeof d->at[i].fix, "hocket env");
  if (d->n == before) hk_doctor_say(d, HK_DOC_OK, NULL, "every NCCL_ and HOCKET_ variable is known");
}

/* Finds plugins as the library does; the variable may be a list. */
static void env_try_plugin(hk_doctor *d, const char *variable, const char *kind) {
  const char *list = getenv(variable);
  char name[HK_PLUGIN_FILE], file[HK_PLUGIN_FILE], why[256];
  while (hk_plugin_next(&list, name)) {
    void *lib = hk_plugin_open(kind, name, file, why, sizeof why);
    hk_plugin adds = {.library = lib};
    bool sums = lib && !strcmp(kind, "net") && hk_plugin_symbol(&adds, "ncclCollNetPlugin_v", 12, 8);
    if (lib)
      hk_doctor_say(d, HK_DOC_OK, NULL, "%s=%s can be loaded%s", variable, name,
                    sums ? "; it has a CollNet plugin, which NCCL_COLLNET_ENABLE=1 uses" : "");
    else
      hk_doctor_say(d, HK_DOC_PROBLEM,
                    "give its path, or add its folder to LD_LIBRARY_PATH; unset the variable to go without",
                    "%s=%s cannot be loaded: %s", variable, name, why);
    if (lib) dlclose(lib);
  }
}

static void env_try_file(hk_doctor *d, const char *variable, const char *value) {
  char fix[256];
  hk_topo *t = NULL;
  if (!value || !*value || strcmp(value, "none") == 0) return;
  if (access(value, R_OK) != 0) {
    hk_doctor_say(d, HK_DOC_PROBLEM, "correct the path, or unset the variable", "%s=%s cannot be read: %s", variable,
                  value, strerror(errno));
  } else if (strcmp(variable, "NCCL_TOPO_FILE") == 0 && hk_topo_read_xml(&t, value, NULL, NULL) != HK_OK) {
    hk_doctor_say(d, HK_DOC_PROBLEM, hk_doctor_fix(fix, "hocket topo --lint %.200s", value), "%s: %s", variable,
                  hk_last_error());
  } else {
    hk_doctor_say(d, HK_DOC_OK, NULL, "%s=%s can be read", variable, value);
  }
  hk_topo_free(t);
}

void hk_doctor_plugins(hk_doctor *d) {
  static const struct {
    const char *variable, *kind;
  } plugins[] = {{"NCCL_NET_PLUGIN", "net"},
                 {"NCCL_TUNER_PLUGIN", "tuner"},
                 {"NCCL_PROFILER_PLUGIN", "profiler"},
                 {"NCCL_ENV_PLUGIN", "env"}};
  static const struct {
    const char *variable;
    hk_param_id id; /* configuration files may name them too */
  } files[] = {{"NCCL_TOPO_FILE", HK_P_TOPO_FILE},
               {"NCCL_GRAPH_FILE", HK_P_GRAPH_FILE},
               {"HOCKET_TUNING_FILE", HK_P_TUNING_FILE},
               {"HOCKET_TUNE_FILE", HK_P_TUNE_FILE},
               {"NCCL_CONF_FILE", HK_P_CONF_FILE}};
  int before = d->n;
  if (!d->live) return;
  for (size_t i = 0; i < HK_ARRAY_LENGTH(plugins); i++) env_try_plugin(d, plugins[i].variable, plugins[i].kind);
  for (size_t i = 0; i < HK_ARRAY_LENGTH(files); i++) env_try_file(d, files[i].variable, hk_param_str(files[i].id));
  if (d->n == before) hk_doctor_say(d, HK_DOC_OK, NULL, "no plugin or file is asked for");
}
