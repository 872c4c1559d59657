/* SPDX-License-Identifier: Apache-2.0 */
#define VERSION 2
#include "env.h"
