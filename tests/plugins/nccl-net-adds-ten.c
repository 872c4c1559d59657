/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 10
#include "collnet.h"
