/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 6
#include "profiler.h"
