/* SPDX-License-Identifier: Apache-2.0 */
/* Plugins made for NCCL: how their libraries are found, and where their log goes. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

enum { HK_PLUGIN_FILE = 256 };
typedef struct hk_plugin {
  void *library;
  const void *symbol; /* the newest of its versions that is supported here */
  int version;
  char file[HK_PLUGIN_FILE];
} hk_plugin;

/* Loads a plugin of a kind ("net", "tuner", "profiler"): `name` as dlopen takes it; a name without a slash that is no
 * library's is then looked for as libnccl-KIND-NAME.so. NULL: the default, libnccl-KIND.so. `file` gets the name of
 * what was loaded. NULL, with the reason in `why`, if there is none. */
void *hk_plugin_open(const char *kind, const char *name, char file[HK_PLUGIN_FILE], char *why, size_t why_bytes);

/* The newest of PREFIX<newest> to PREFIX<oldest> in out->library; false if it has none. */
bool hk_plugin_symbol(hk_plugin *out, const char *prefix, int newest, int oldest);
/* The plugin that is wanted, with the versions that are supported. */
typedef struct hk_plugin_request {
  const char *kind, *name; /* as for hk_plugin_open */
  const char *nets;        /* the network plugins: NCCL_NET_PLUGIN; NULL: the default one */
  const char *prefix;      /* of the symbol */
  int newest, oldest;
} hk_plugin_request;
/* A tuner or profiler: the library that `name` names or the default one, else the first of the network plugins'
 * libraries that has such a symbol, as in NCCL. False with `why`, which is empty if nothing was named and nothing
 * exists. */
bool hk_plugin_find(const hk_plugin_request *q, hk_plugin *out, char *why, size_t why_bytes);
/* The first of the network plugins' libraries that has such a symbol; false if none has. */
bool hk_plugin_find_in_net(const hk_plugin_request *q, hk_plugin *out);
/* The next name of a list like NCCL_NET_PLUGIN's, copied to `name`; *list moves on. False at its end, and for
 * "none". */
bool hk_plugin_next(const char **list, char name[HK_PLUGIN_FILE]);

/* The log of a plugin goes to our log. Levels 1 (VERSION), 2 (WARN), 3 (INFO), 4 (ABORT), 5 (TRACE); flags are
 * base/log.h's subsystem bits. */
typedef void (*hk_plugin_logger)(int level, unsigned long flags, const char *file, int line, const char *format, ...);
void hk_plugin_log(int level, unsigned long flags, const char *file, int line, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

/* A result code of NCCL as text. */
const char *hk_plugin_result(int code);
