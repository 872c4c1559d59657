/* SPDX-License-Identifier: Apache-2.0 */
/* Sends and receives as programs: one lane with one instruction, `link <- input` or `output <- link`. */
#pragma once
#include <stdbool.h>
#include "../base/status.h"
#include "../program/operation.h"

struct hk_program; /* program/program.h */

/* The program of rank `rank` that sends to `peer`, or receives from it. Its HK_IN or HK_OUT is the whole message. */
hk_status hk_transfer_build(int rank, int nranks, int peer, bool sends, struct hk_program **out);
