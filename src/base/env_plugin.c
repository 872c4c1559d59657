/* SPDX-License-Identifier: Apache-2.0 */
/* Environment plugins, versions 1 and 2: env_plugin.h.  A plugin exports ncclEnvPlugin_v1 or _v2; they differ in the
 * logger that init of v2 gets.  Parameters are read through the plugin, so nothing here reads one. */
#include "env_plugin.h"
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "plugin.h"

typedef struct env_v {
  const char *name;
  union {
    int (*v1)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix);
    int (*v2)(uint8_t major, uint8_t minor, uint8_t patch, const char *suffix, hk_plugin_logger log);
  } init;
  int (*finalize)(void);
  const char *(*get)(const char *name);
} env_v;
_Static_assert(sizeof(env_v) == 32, "the plugin's struct is 32 bytes");

/* State of the process, as the environment is. */
static struct {
  bool looked;
  const env_v *calls; /* NULL: no plugin */
} plugin;

/* The log cannot be used while parameters are read: it reads them itself. */
static void env_plugin_drop_line(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  (void)level, (void)flags, (void)file, (void)line, (void)format;
}

static void env_plugin_finish(void) {
  if (plugin.calls && plugin.calls->finalize) (void)plugin.calls->finalize();
}

bool hk_env_plugin_load(char *said, size_t bytes) {
  const char *name = secure_getenv("NCCL_ENV_PLUGIN");
  char why[200] = "it has neither ncclEnvPlugin_v1 nor ncclEnvPlugin_v2";
  hk_plugin p = {.library = NULL};
  said[0] = 0;
  if (plugin.looked || (name && (!*name || !strcmp(name, "none")))) return true;
  plugin.looked = true;
  p.library = hk_plugin_open("env", name, p.file, why, sizeof why);
  if (!p.library && !name) return true;
  const env_v *v = p.library && hk_plugin_symbol(&p, "ncclEnvPlugin_v", 2, 1) ? p.symbol : NULL;
  if (v && (!v->init.v1 || !v->get)) {
    v = NULL;
    snprintf(why, sizeof why, "it lacks init or getEnv");
  }
  if (v) {
    int code = p.version == 1 ? v->init.v1(HK_NCCL_MAJOR, HK_NCCL_MINOR, HK_NCCL_PATCH, "")
                              : v->init.v2(HK_NCCL_MAJOR, HK_NCCL_MINOR, HK_NCCL_PATCH, "", env_plugin_drop_line);
    if (code) snprintf(why, sizeof why, "its init fails with code %d (%s)", code, hk_plugin_result(code));
    if (code) v = NULL;
  }
  if (!v) {
    snprintf(said, bytes, "the environment plugin %s is not used: %s. The environment counts", p.file, why);
    if (p.library) dlclose(p.library);
    return false;
  }
  snprintf(said, bytes, "environment plugin %s (v%d) from %s gives the values of NCCL_ variables",
           v->name ? v->name : "(without a name)", p.version, p.file);
  plugin.calls = v;
  (void)atexit(env_plugin_finish);
  return true;
}

bool hk_env_plugin_get(const char *name, const char **value) {
  if (!plugin.calls || strncmp(name, "NCCL_", 5) != 0) return false;
  *value = plugin.calls->get(name);
  return true;
}
