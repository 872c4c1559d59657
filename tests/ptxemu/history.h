/* SPDX-License-Identifier: Apache-2.0 */
#ifndef HK_PTXEMU_HISTORY_H
#define HK_PTXEMU_HISTORY_H
#include "access.h"

void ptx_history_begin(void);
uint64_t ptx_history_now(void);
uint64_t ptx_history_tick(void); /* a time that no other store has */
/* At most 16 bytes that lie in one place of 16.  released: when its own device could see it; 0: now. */
void ptx_history_store(ptx_warp *w, uint64_t at, const void *data, unsigned bytes, bool strong, uint64_t released);
/* `data` is what is there; becomes the oldest that a thread may see that has seen all up to these times. */
void ptx_history_load(ptx_warp *w, uint64_t at, unsigned char *data, unsigned bytes, uint64_t seen_gpu,
                      uint64_t seen_sys);
/* The same for the host's memory, of whose stores nothing is known: what the block has read there stays until one of
 * its threads acquires or stores there. */
void ptx_history_load_host(ptx_block *b, uint64_t at, unsigned char *data, unsigned bytes);
void ptx_history_store_host(ptx_block *b, uint64_t at);
#endif
