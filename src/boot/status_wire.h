/* SPDX-License-Identifier: Apache-2.0 */
/* The answer of a process (status.h), for status.c, which writes it, and status_read.c. All numbers are little-endian.
 * Head: magic 8, number of members 4, bytes of the job's names 4; then these names (job.h). Member: comm 8, key 8,
 * rank 4, nranks 4, contacts that follow 4 (0 or nranks), counters that follow 4, secret 16, name 64, activity with a
 * nonce of zeros, idle time in ns 8, repairs 8, failovers 8; then the contacts, then the counters: kind 1, class 1,
 * zero 6, calls 8, bytes 8, ns 8. */
#pragma once
#include "wire.h"

#define HK_STATUS_SOCKET "hocket/" /* after a zero byte */
#define HK_STATUS_MAGIC "HKSTAT03"
enum {
  HK_STATUS_NAME = 64,
  HK_STATUS_HEAD_BYTES = 16,
  HK_STATUS_MEMBER_BYTES = 32 + HK_SECRET_BYTES + HK_STATUS_NAME + HK_ACTIVITY_BYTES + 24,
  HK_STATUS_COUNTER_BYTES = 32,
  HK_STATUS_MOST = 64 << 20 /* bytes of an answer */
};
