/* SPDX-License-Identifier: Apache-2.0 */
/* ncclParam*: every parameter of the table by its key and by a handle.
 * check: notsan */
#include <nccl.h>
#include "../../src/base/param.h"
#include "../support/suite.h"

static ncclParamHandle_t handle(const char *key) {
  ncclParamHandle_t h = NULL;
  ck_assert_int_eq(ncclParamBind(&h, key), ncclSuccess);
  ck_assert_ptr_nonnull(h);
  return h;
}

TEST(every_key_has_a_value) {
  const char **table = NULL;
  int n = 0;
  ck_assert_int_eq(ncclParamGetAllParameterKeys(&table, &n), ncclSuccess);
  ck_assert_int_eq(n, HK_P_COUNT);
  for (int i = 0; i < n; i++) {
    const char *value = NULL, *text = NULL;
    int length = -1, bytes = -1;
    int64_t number = 0;
    char raw[512];
    hk_param_info info;
    hk_param_describe((hk_param_id)i, &info);
    ncclParamHandle_t h = handle(table[i]);
    ck_assert_str_eq(table[i], info.name);
    ck_assert_int_eq(ncclParamGetParameter(table[i], &value, &length), ncclSuccess);
    ck_assert_int_eq(length, (int)strlen(value));
    ck_assert_int_eq(ncclParamGet(h, raw, sizeof raw, &bytes), ncclSuccess);
    ck_assert_int_eq(ncclParamGetStr(h, &text), info.is_string ? ncclSuccess : ncclInvalidArgument);
    ck_assert_int_eq(ncclParamGetI64(h, &number), info.is_string ? ncclInvalidArgument : ncclSuccess);
    if (info.is_string) {
      ck_assert_str_eq(text, info.str_value ? info.str_value : "");
      ck_assert_str_eq(value, text);
      ck_assert_str_eq(raw, text);
      ck_assert_int_eq(bytes, length + 1);
    } else {
      ck_assert_int_eq(number, info.value);
      ck_assert_int_eq(strtoll(value, NULL, 10), info.value);
      ck_assert_int_eq(bytes, 8);
      ck_assert_mem_eq(raw, &info.value, 8);
    }
  }
}

TEST(numbers_of_every_width) {
  setenv("NCCL_IB_TIMEOUT", "20", 1);
  setenv("NCCL_MAX_NCHANNELS", "40", 1);
  hk_param_reload();
  ncclParamHandle_t h = handle("NCCL_IB_TIMEOUT"), negative = handle("NCCL_IB_GID_INDEX"),
                    large = handle("HOCKET_SLOT_BYTES");
#define WIDTH(suffix, type, takes_negative)                                                                            \
  {                                                                                                                    \
    type out = 0;                                                                                                      \
    ck_assert_int_eq(ncclParamGet##suffix(h, &out), ncclSuccess);                                                      \
    ck_assert(out == 20);                                                                                              \
    ck_assert_int_eq(ncclParamGet##suffix(negative, &out), takes_negative ? ncclSuccess : ncclInvalidArgument);        \
    ck_assert(out == (type)(takes_negative ? -1 : 20));                                                                \
    ck_assert_int_eq(ncclParamGet##suffix(large, &out), sizeof out > 2 ? ncclSuccess : ncclInvalidArgument);           \
    ck_assert_int_eq(ncclParamGet##suffix(h, NULL), ncclInvalidArgument);                                              \
  }
  WIDTH(I8, int8_t, 1)
  WIDTH(I16, int16_t, 1)
  WIDTH(I32, int32_t, 1)
  WIDTH(I64, int64_t, 1)
  WIDTH(U8, uint8_t, 0)
  WIDTH(U16, uint16_t, 0)
  WIDTH(U32, uint32_t, 0)
  WIDTH(U64, uint64_t, 0)
}

TEST(wrong_arguments) {
  ncclParamHandle_t h = handle("NCCL_DEBUG"), none = h;
  const char *value = "", **table;
  char small[2];
  int length = -1;
  ck_assert_int_eq(ncclParamBind(&none, "NCCL_NO_SUCH_THING"), ncclInvalidArgument);
  ck_assert_ptr_null(none);
  ck_assert_int_eq(ncclParamBind(NULL, "NCCL_DEBUG"), ncclInvalidArgument);
  ck_assert_int_eq(ncclParamBind(&none, NULL), ncclInvalidArgument);
  ck_assert_int_eq(ncclParamGetParameter("NCCL_NO_SUCH_THING", &value, &length), ncclInvalidArgument);
  ck_assert_ptr_null(value);
  ck_assert_int_eq(length, 0);
  ck_assert_int_eq(ncclParamGetParameter("NCCL_DEBUG", NULL, &length), ncclInvalidArgument);
  ck_assert_int_eq(ncclParamGetAllParameterKeys(&table, NULL), ncclInvalidArgument);
  length = -1;
  ck_assert_int_eq(ncclParamGet(h, small, sizeof small, &length), ncclInvalidArgument);
  ck_assert_int_eq(length, 0);
  ck_assert_int_eq(ncclParamGet(h, small, -1, &length), ncclInvalidArgument);
  ck_assert_int_eq(ncclParamGetStr((ncclParamHandle_t)(uintptr_t)&value, &value), ncclInvalidArgument);
  ck_assert_int_eq(ncclParamGetStr((ncclParamHandle_t)((uintptr_t)h + 1), &value), ncclInvalidArgument);
  ck_assert_int_eq(ncclParamGetStr(NULL, &value), ncclInvalidArgument);
}

int main(void) { return suite_main("api_param"); }
