/* SPDX-License-Identifier: Apache-2.0 */
/* A plugin without an irecv. */
#define VERSION 8
#define WITHOUT_IRECV
#include "net.h"
