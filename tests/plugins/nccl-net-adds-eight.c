/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 8
#include "collnet.h"
