/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 3
#include "profiler.h"
