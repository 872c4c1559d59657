/* SPDX-License-Identifier: Apache-2.0 */
/* Finds and loads plugins that were made for NCCL (plugin.h). */
#include "plugin.h"
#include <dlfcn.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include "log.h"
#include "status.h"

static void *plugin_open_library(const char *file, char *why, size_t why_bytes) {
  void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  const char *text = library ? NULL : dlerror();
  if (!library) snprintf(why, why_bytes, "%s", text ? text : file);
  return library;
}

/* A bit for each kind whose default library does not exist. The loader needs 30 to 80 us to look for a library, and
 * each communicator looks for several. */
static _Atomic(unsigned) absent;

static unsigned plugin_bit_of(const char *kind) {
  static const char *const kinds[] = {"net", "tuner", "profiler", "env"};
  for (unsigned i = 0; i < HK_ARRAY_LENGTH(kinds); i++)
    if (strcmp(kind, kinds[i]) == 0) return 1u << i;
  return 0;
}

void *hk_plugin_open(const char *kind, const char *name, char file[HK_PLUGIN_FILE], char *why, size_t why_bytes) {
  if (name)
    snprintf(file, HK_PLUGIN_FILE, "%s", name);
  else
    snprintf(file, HK_PLUGIN_FILE, "libnccl-%s.so", kind);
  unsigned bit = name ? 0 : plugin_bit_of(kind);
  /* relaxed: the bit says nothing about other memory */
  if (atomic_load_explicit(&absent, memory_order_relaxed) & bit) {
    snprintf(why, why_bytes, "%s is not there", file);
    return NULL;
  }
  void *library = plugin_open_library(file, why, why_bytes);
  if (!library && bit) atomic_fetch_or_explicit(&absent, bit, memory_order_relaxed); /* as above */
  if (library || !name || strchr(name, '/') || (!strncmp(name, "lib", 3) && strstr(name, ".so"))) return library;
  snprintf(file, HK_PLUGIN_FILE, "libnccl-%s-%s.so", kind, name);
  return plugin_open_library(file, why, why_bytes);
}

bool hk_plugin_symbol(hk_plugin *out, const char *prefix, int newest, int oldest) {
  for (out->version = newest; out->version >= oldest; out->version--) {
    char symbol[64];
    snprintf(symbol, sizeof symbol, "%s%d", prefix, out->version);
    if ((out->symbol = dlsym(out->library, symbol))) return true;
  }
  return false;
}

bool hk_plugin_next(const char **list, char name[HK_PLUGIN_FILE]) {
  while (*list && **list) {
    size_t n = strcspn(*list, ",");
    snprintf(name, HK_PLUGIN_FILE, "%.*s", (int)(n < HK_PLUGIN_FILE ? n : HK_PLUGIN_FILE - 1), *list);
    *list += n + ((*list)[n] == ',');
    if (*name && strcasecmp(name, "none") != 0) return true;
  }
  return false;
}

bool hk_plugin_find_in_net(const hk_plugin_request *q, hk_plugin *out) {
  const char *list = q->nets;
  char name[HK_PLUGIN_FILE], why[200];
  bool named = list != NULL;
  while (named ? hk_plugin_next(&list, name) : !list) {
    out->library = hk_plugin_open("net", named ? name : NULL, out->file, why, sizeof why);
    if (out->library && hk_plugin_symbol(out, q->prefix, q->newest, q->oldest)) return true;
    if (out->library) dlclose(out->library);
    if (!named) break;
  }
  return false;
}

bool hk_plugin_find(const hk_plugin_request *q, hk_plugin *out, char *why, size_t why_bytes) {
  char first[HK_PLUGIN_FILE], text[200] = "";
  why[0] = '\0';
  out->library = hk_plugin_open(q->kind, q->name, out->file, text, sizeof text);
  if (out->library && hk_plugin_symbol(out, q->prefix, q->newest, q->oldest)) return true;
  if (out->library)
    snprintf(why, why_bytes, "%s has none of %s%d to %s%d", out->file, q->prefix, q->oldest, q->prefix, q->newest);
  else if (q->name)
    snprintf(why, why_bytes, "%s", text);
  if (out->library) dlclose(out->library);
  snprintf(first, sizeof first, "%s", out->file);
  if (hk_plugin_find_in_net(q, out)) return true;
  snprintf(out->file, sizeof out->file, "%s", first);
  return false;
}

void hk_plugin_log(int level, unsigned long flags, const char *file, int line, const char *format, ...) {
  static const hk_log_level levels[] = {HK_LOG_NONE, HK_LOG_VERSION, HK_LOG_WARN,
                                        HK_LOG_INFO, HK_LOG_WARN,    HK_LOG_TRACE};
  hk_log_level at = level >= 0 && (size_t)level < HK_ARRAY_LENGTH(levels) ? levels[level] : HK_LOG_INFO;
  char text[512];
  va_list arguments;
  if (!hk_log_on(at, (unsigned)flags)) return;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  hk_log_write(at, (unsigned)flags, file ? file : "plugin", line, "%s", text);
}

const char *hk_plugin_result(int code) {
  static const char *const words[] = {"success",          "unhandled CUDA error", "system error", "internal error",
                                      "invalid argument", "invalid usage",        "remote error", "in progress"};
  return code >= 0 && (size_t)code < HK_ARRAY_LENGTH(words) ? words[code] : "a code that NCCL does not have";
}
