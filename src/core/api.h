/* SPDX-License-Identifier: Apache-2.0 */
/* Export of the API: pncclX is the function, and ncclX is a weak alias that tools may replace. */
#pragma once
#include <nccl.h>

#define HK_EXPORT __attribute__((visibility("default")))
/* HK_API(ncclResult_t, ncclSend, (params)) { body } defines pncclSend and its alias ncclSend. */
#define HK_API(ret, name, params)                                                                                      \
  HK_EXPORT ret name params __attribute__((weak, alias("p" #name)));                                                   \
  HK_EXPORT ret p##name params
