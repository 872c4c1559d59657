/* SPDX-License-Identifier: Apache-2.0 */
/* HK_SANITIZED: 1 in a build with the address or the thread sanitizer, else 0. */
#pragma once

#ifndef __has_feature /* clang's test; gcc has macros */
#define __has_feature(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || __has_feature(address_sanitizer) ||               \
    __has_feature(thread_sanitizer)
#define HK_SANITIZED 1
#else
#define HK_SANITIZED 0
#endif
