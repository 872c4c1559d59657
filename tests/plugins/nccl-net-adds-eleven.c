/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 11
#include "collnet.h"
