/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 9
#include "collnet.h"
