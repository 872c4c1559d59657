/* SPDX-License-Identifier: Apache-2.0 */
/* Errors of GPUs (Xid) and NVSwitches (SXid) that NVIDIA's drivers write to the kernel's log. */
#pragma once
#include <stdbool.h>
#include <stdint.h>

typedef struct hk_xid {
  char bus[24];   /* "0000:3b:00", as the driver writes it */
  bool nvswitch;  /* an SXid */
  bool program;   /* usually a fault of the program that used the GPU, and not of the GPU */
  int number;     /* 79 */
  int times;      /* how often the log has it for this device */
  int64_t age_s;  /* since the newest one */
  char text[120]; /* what the driver says of the newest one */
} hk_xid;
enum { HK_XIDS = 64 }; /* devices times numbers; later ones are left out */

/* Reads the log of the machine below `root` ("": this one). Returns the number of different errors, or -1: the log
 * cannot be read, and errno is the reason (EPERM: only root may, kernel.dmesg_restrict). */
int hk_xid_read(const char *root, hk_xid out[HK_XIDS]);
