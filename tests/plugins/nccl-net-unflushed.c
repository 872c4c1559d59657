/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin without an iflush: GPUs' drivers must do it. */
#define VERSION 9
#define WITHOUT_IFLUSH
#include "net.h"
