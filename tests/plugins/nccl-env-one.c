/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 1
#include "env.h"
