/* SPDX-License-Identifier: Apache-2.0 */
/* C and CUDA C include this header. */
#pragma once
#include <stdint.h>

/* One end of a link, in device memory, private to the rank and the kernel that runs. 16-aligned, as is its size. */
typedef struct hk_gpu_link {
  uint64_t *done;              /* slots sent or received so far by the end; all plans share it */
  uint64_t *head;              /* slots that the receiver has given back */
  uint64_t *word;              /* of slot i at word[i * HK_GPU_WORD_STRIDE] */
  char *data;                  /* of slot i at data + i * slot_bytes; NULL: there is only `small` */
  char *lines;                 /* of slot i at lines + i * 2 * HK_GPU_LL_MAX, if `proxied` ..._NET_MAX; NULL: no LL */
  uint32_t slot_bytes, nslots; /* a power of two */
  uint32_t peer;
  uint16_t sends;
  uint16_t proxied;    /* over the network, by a proxy (gpu/proxy.h): a note follows each word */
  char *wide;          /* of slot i at wide + i * wide_bytes, 128-aligned; NULL: no LL128 */
  uint32_t wide_bytes; /* a multiple of 256, the same at both ends */
  uint32_t refs;       /* sender: from this size on it sends references to its own addresses; 0: by the call's tables */
  char *own; /* in the switch, receiver of a part from each other rank: slots for this rank's own part; else NULL */
  uint32_t multi; /* HK_GPU_MULTI_* */
  /* Sender: receivers minus one; receiver i has the head head[i * HK_GPU_HEAD_STRIDE]. Receiver of the sum for all:
   * senders minus one; sender i has the words from word[i * nslots * HK_GPU_WORD_STRIDE] on. */
  uint32_t others;
  char *small; /* slot i with at most HK_LINK_SMALL bytes is at small + i * HK_LINK_SMALL; NULL: at data */
} hk_gpu_link;
enum {                          /* hk_gpu_link.multi */
       HK_GPU_MULTI_SIGNAL = 1, /* its signals go to a multicast address; head NULL: another link stores the head */
       HK_GPU_MULTI_DATA = 2,   /* its data goes to a multicast address, too */
       HK_GPU_MULTI_SUM = 4     /* receiver: its data is a multicast address, at which it reads the sum for all */
};
