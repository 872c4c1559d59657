/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 4
#include "profiler.h"
