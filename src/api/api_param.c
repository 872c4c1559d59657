/* SPDX-License-Identifier: Apache-2.0 */
/* The parameter table, for programs: by key (the environment variable's name) or by a handle of it.  From any
 * thread. */
#include <inttypes.h>
#include <string.h>
#include "../base/param.h"
#include "../base/status.h"
#include "../core/api.h"

static const char *const keys[HK_P_COUNT] = {
#define HK_PARAM_INT(id, name, ...) [HK_P_##id] = name,
#define HK_PARAM_STR(id, name, ...) [HK_P_##id] = name,
#include "../base/params.def"
#undef HK_PARAM_INT
#undef HK_PARAM_STR
};

/* A handle points to its key, so that it is valid for ever and any other pointer is recognised. */
static hk_status api_param_find(const char *who, const char *key, hk_param_id *out) {
  if (!key) return HK_FAIL(HK_ERR_ARGUMENT, "%s: key is NULL", who);
  for (int i = 0; i < HK_P_COUNT; i++) {
    if (strcmp(keys[i], key) != 0) continue;
    *out = (hk_param_id)i;
    return HK_OK;
  }
  return HK_FAIL(HK_ERR_ARGUMENT, "%s: there is no parameter %s: ncclParamGetAllParameterKeys lists them", who, key);
}

static hk_status api_param_describe(const char *who, ncclParamHandle_t h, const void *out, hk_param_info *info) {
  const char *const *at = (const char *const *)(const void *)h;
  if (!h || at < keys || at >= keys + HK_P_COUNT || (uintptr_t)at % sizeof *at)
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: %p is no handle of ncclParamBind", who, (const void *)h);
  if (!out) return HK_FAIL(HK_ERR_ARGUMENT, "%s: out is NULL", who);
  hk_param_describe((hk_param_id)(at - keys), info);
  return HK_OK;
}

HK_API(ncclResult_t, ncclParamBind, (ncclParamHandle_t * out, const char *key)) {
  hk_param_id id = HK_P_COUNT;
  if (!out) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclParamBind: out is NULL");
  hk_status rc = api_param_find("ncclParamBind", key, &id);
  *out = rc == HK_OK ? (ncclParamHandle_t)(uintptr_t)&keys[id] : NULL;
  return (ncclResult_t)rc;
}

/* A number of any width in which the value fits. */
static hk_status api_param_number(const char *who, ncclParamHandle_t h, const void *out, int64_t min, uint64_t max,
                                  int64_t *v) {
  hk_param_info info;
  hk_status rc = api_param_describe(who, h, out, &info);
  if (rc != HK_OK) return rc;
  if (info.is_string) return HK_FAIL(HK_ERR_ARGUMENT, "%s: %s is text: use ncclParamGetStr", who, info.name);
  if (info.value < min || (info.value > 0 && (uint64_t)info.value > max))
    return HK_FAIL(HK_ERR_ARGUMENT, "%s: %s is %" PRId64 ", which this type cannot hold: use ncclParamGetI64", who,
                   info.name, info.value);
  *v = info.value;
  return HK_OK;
}

#define GETTER(suffix, type, min, max)                                                                                 \
  HK_API(ncclResult_t, ncclParamGet##suffix, (ncclParamHandle_t h, type * out)) {                                      \
    int64_t value = 0;                                                                                                 \
    hk_status rc = api_param_number("ncclParamGet" #suffix, h, out, min, max, &value);                                 \
    if (rc == HK_OK) *out = (type)value;                                                                               \
    return (ncclResult_t)rc;                                                                                           \
  }
GETTER(I8, int8_t, INT8_MIN, INT8_MAX)
GETTER(I16, int16_t, INT16_MIN, INT16_MAX)
GETTER(I32, int32_t, INT32_MIN, INT32_MAX)
GETTER(I64, int64_t, INT64_MIN, INT64_MAX)
GETTER(U8, uint8_t, 0, UINT8_MAX)
GETTER(U16, uint16_t, 0, UINT16_MAX)
GETTER(U32, uint32_t, 0, UINT32_MAX)
GETTER(U64, uint64_t, 0, UINT64_MAX)

/* The text of a parameter's value; "" for text that is not set. */
static const char *api_param_words(const hk_param_info *info, char *digits, size_t bytes) {
  if (info->is_string) return info->str_value ? info->str_value : "";
  snprintf(digits, bytes, "%" PRId64, info->value);
  return digits;
}

HK_API(ncclResult_t, ncclParamGetStr, (ncclParamHandle_t h, const char **out)) {
  hk_param_info info;
  hk_status rc = api_param_describe("ncclParamGetStr", h, out, &info);
  if (rc == HK_OK && !info.is_string)
    rc = HK_FAIL(HK_ERR_ARGUMENT, "ncclParamGetStr: %s is a number: use ncclParamGetI64", info.name);
  if (rc == HK_OK) *out = api_param_words(&info, NULL, 0);
  return (ncclResult_t)rc;
}

HK_API(ncclResult_t, ncclParamGet, (ncclParamHandle_t h, void *out, int maxLen, int *len)) {
  hk_param_info info;
  if (!len) return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclParamGet: len is NULL");
  *len = 0;
  hk_status rc = api_param_describe("ncclParamGet", h, out, &info);
  if (rc != HK_OK) return (ncclResult_t)rc;
  const void *from = info.is_string ? (const void *)api_param_words(&info, NULL, 0) : &info.value;
  size_t bytes = info.is_string ? strlen(from) + 1 : sizeof info.value;
  if (maxLen < 0 || bytes > (size_t)maxLen)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclParamGet: %s has %zu bytes, and out has room for %d", info.name,
                                 bytes, maxLen);
  memcpy(out, from, bytes);
  *len = (int)bytes;
  return ncclSuccess;
}

HK_API(ncclResult_t, ncclParamGetParameter, (const char *key, const char **value, int *valueLen)) {
  static _Thread_local char digits[24];
  hk_param_id id = HK_P_COUNT;
  hk_param_info info;
  if (!value || !valueLen)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclParamGetParameter: value or valueLen is NULL");
  *value = NULL;
  *valueLen = 0;
  hk_status rc = api_param_find("ncclParamGetParameter", key, &id);
  if (rc != HK_OK) return (ncclResult_t)rc;
  hk_param_describe(id, &info);
  *value = api_param_words(&info, digits, sizeof digits);
  *valueLen = (int)strlen(*value);
  return ncclSuccess;
}

HK_API(ncclResult_t, ncclParamGetAllParameterKeys, (const char ***table, int *tableLen)) {
  if (!table || !tableLen)
    return (ncclResult_t)HK_FAIL(HK_ERR_ARGUMENT, "ncclParamGetAllParameterKeys: table or tableLen is NULL");
  *table = (const char **)(uintptr_t)keys; /* NCCL's type has no const, but callers must not write to the table */
  *tableLen = HK_P_COUNT;
  return ncclSuccess;
}

HK_API(void, ncclParamDumpAll, (void)) {
  for (int i = 0; i < HK_P_COUNT; i++) {
    hk_param_info info;
    char digits[24];
    hk_param_describe((hk_param_id)i, &info);
    printf("%s=%s (%s)\n", info.name, api_param_words(&info, digits, sizeof digits), info.origin);
  }
  fflush(stdout);
}
