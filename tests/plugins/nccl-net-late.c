/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin whose init fills its calls in. */
#define VERSION 8
#define LATE
#include "net.h"
