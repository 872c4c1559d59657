/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 7
#include "profiler.h"
