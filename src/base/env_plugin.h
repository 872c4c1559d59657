/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's environment plugins: a library that gives the values of NCCL's variables in place of the environment. */
#pragma once
#include <stdbool.h>
#include <stddef.h>

/* The version of NCCL that plugins are given; nccl.h's (api/api_misc.c). */
enum { HK_NCCL_MAJOR = 2, HK_NCCL_MINOR = 32, HK_NCCL_PATCH = 3 };

/* Loads, once, the plugin that NCCL_ENV_PLUGIN names, else libnccl-env.so.  `said` gets a line for the log, empty if
 * there is nothing to say.  Returns false if the line is a warning.  The caller holds a lock. */
bool hk_env_plugin_load(char *said, size_t bytes);
/* With a plugin the value of a variable of NCCL is the plugin's alone.  False: there is no plugin, or it is another
 * variable. */
bool hk_env_plugin_get(const char *name, const char **value);
