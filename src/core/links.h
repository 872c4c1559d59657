/* SPDX-License-Identifier: Apache-2.0 */
/* The links of a rank on host memory: opened at first use, by the transport that reaches the peer (wiring.h). */
#pragma once
#include "../transport/link.h"
#include "comm.h"

typedef struct hk_transfer_run hk_transfer_run;
/* A link with the queue of sends or receives that use it in turn. */
typedef struct hk_wired_link {
  hk_link link;
  uint64_t issued, served;
  hk_transfer_run *transfer; /* runs the sends or receives (transfer.h); NULL: none has used the link */
} hk_wired_link;

hk_status hk_wire_link(ncclComm_t c, hk_link_key key, hk_wired_link **out);
