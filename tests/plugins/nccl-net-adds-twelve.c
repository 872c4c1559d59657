/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 12
#include "collnet.h"
