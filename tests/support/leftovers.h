/* SPDX-License-Identifier: Apache-2.0 */
/* What a test case leaves behind (leftovers.c). */
#ifndef HK_TESTS_LEFTOVERS_H
#define HK_TESTS_LEFTOVERS_H

/* From now on a test case fails that leaves descriptors, threads or shared mappings behind. Each test program calls it
 * before main. */
void leftovers_watch(void);
/* The same for a child of a test case, which calls it, and then ends by exit(). */
void leftovers_watch_child(void);
/* This test case may: it ends in the middle of something. */
void leftovers_ignore(void);
/* The test keeps this descriptor, and the calling thread, until its process ends. */
void leftovers_own(int fd);
void leftovers_own_thread(void);
#endif
