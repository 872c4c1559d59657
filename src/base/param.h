/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter table. One row (params.def) has name, type, default, range and help; the manual page and `hocket env`
 * are made from it. Sources in falling precedence: environment, ~/.nccl.conf, /etc/nccl.conf, default. A name in the
 * environment that starts with NCCL_ or HOCKET_ and is not in the table is reported once with the nearest known name.
 * NCCL's variables that have no effect here (params_inert.def) are reported at INFO. */
#pragma once
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

typedef enum hk_param_id {
#define HK_PARAM_INT(id, name, def, min, max, unit, help) HK_P_##id,
#define HK_PARAM_STR(id, name, def, help) HK_P_##id,
#include "params.def" /* the rows */
#undef HK_PARAM_INT
#undef HK_PARAM_STR
  HK_P_COUNT
} hk_param_id;

/* The values of all parameters at one moment: `settings->WATCHDOG`.  A communicator takes them at its init and gives
 * them to its parts, so a variable that changes later changes nothing of it. */
typedef struct hk_settings {
#define HK_PARAM_INT(id, name, def, min, max, unit, help) int64_t id;
#define HK_PARAM_STR(id, name, def, help) const char *id;
#include "params.def"
#undef HK_PARAM_INT
#undef HK_PARAM_STR
} hk_settings;
/* The values in force.  They live, unchanged, as long as the process; equal ones are one object. */
const hk_settings *hk_settings_now(void);

/* The value in force. The environment is read at the first call, and by hk_param_renew. If a value is out of range, the
 * default is used, with a WARN that names the range. */
int64_t hk_param_int(hk_param_id id);
/* NULL if unset and without default. The string lives as long as the process. */
const char *hk_param_str(hk_param_id id);

typedef struct hk_param_info {
  const char *name, *unit, *help, *origin; /* origin: "default", "environment", or a file's path */
  int is_string;
  int64_t def, min, max, value;
  const char *str_def, *str_value;
} hk_param_info;
void hk_param_describe(hk_param_id id, hk_param_info *info);
void hk_param_reload(void);
/* Reads everything again if a variable of ours has changed in the environment: a program may set one between two
 * communicators, and NCCL reads them for each. */
void hk_param_renew(void);
/* Reads everything again and passes findings to `report` instead of the log. `wrong`: misspelt names, values out of
 * range, bad lines of a file; false: names without effect here. */
void hk_param_check(void (*report)(void *arg, bool wrong, const char *text), void *arg);
/* Reports misspelt names, once for each process. Not done when the table is read, because each process of a large job
 * would report them. A rank that begins its first communicator and is `first` in it reports them at WARN; the other
 * ranks' processes log them at INFO once the communicator is complete. */
void hk_param_report_names(bool first);
/* Reads one parameter again; no names are checked. */
void hk_param_refresh(hk_param_id id);
