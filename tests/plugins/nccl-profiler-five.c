/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 5
#include "profiler.h"
