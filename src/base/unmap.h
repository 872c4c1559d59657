/* SPDX-License-Identifier: Apache-2.0 */
/**
 * Notices that memory of this process is unmapped, moved or dropped, before other memory can be used in its place: for
 * what is kept about memory that belongs to the user, such as its registration with a card.
 *
 * The kernel reports it through a descriptor (userfaultfd): munmap, mremap, brk and madvise do not return before their
 * report was read from it. No page fault is ever handled: ranges are registered for write protection, which is never
 * switched on. A thread of the process, the reader, reads the reports.
 *
 * Why a range is the same memory if hk_unmap_look says so. Let C be a change of the range that concerns the caller: it
 * has begun before the caller got the memory that is in the range now.
 *   1. The kernel counts C as under way from before the pages are gone until its report was read and the thread that
 *      made it goes on. The calls that write-protect pages fail with EAGAIN while any change is under way, before they
 *      look at their argument. hk_unmap_look makes one with an empty range first. Without EAGAIN the report of C was
 *      read before. This covers what a report alone does not: between an unmapping in one thread and its report,
 *      another thread may get new memory at that address.
 *   2. The reader holds the lock from before it reads a report until the ranges are marked. hk_unmap_look takes the
 *      lock after (1), so it sees the mark of C.
 * While something changes anywhere in watched memory, the answer is HK_UNMAP_UNKNOWN.
 *
 * Dropping pages (MADV_DONTNEED, MADV_FREE) is reported before the pages go, and then no longer counts as under way.
 * When the call has returned, a range that was watched when it began is marked. But a watch that begins while another
 * thread drops pages of the same range may begin between the report and the end of the pages, and is not marked. So a
 * program must not begin to use memory before a call that drops its pages has returned. Allocators do not.
 *
 * Why nothing waits for itself. The reader takes the lock, reads, marks, and calls ioctl; it allocates and frees
 * nothing and writes no log. Under the lock no function of this file allocates, frees, maps or unmaps. So a thread that
 * waits for the reader, within free() for example, never holds the lock, and the reader never waits for such a thread.
 * Callers may hold any lock of theirs: the reader takes none of them.
 *
 * Only private anonymous memory is watched: the kernel does not report that a file, or shared memory, is truncated. Two
 * more things are not reported (Linux 6.18): shmat with SHM_REMAP over a range, and MADV_GUARD_INSTALL, which drops
 * pages. If a program does this to memory that is watched, the answer is wrong from then on.
 *
 * Fork. The kernel watches none of the child's memory. The child's copy of the descriptor still means the parent's
 * memory, so the last close in the parent first ends the watch of each range. A child that opens a watch gets its own.
 */
#ifndef HK_BASE_UNMAP_H
#define HK_BASE_UNMAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct hk_unmap hk_unmap; /* the process's watch; all who open it share it */
typedef struct hk_unmap_range {   /* a range that is watched */
  uint32_t slot;
  uint64_t serial; /* 0: none */
} hk_unmap_range;

typedef enum hk_unmap_state {
  HK_UNMAP_SAME,
  HK_UNMAP_UNKNOWN, /* memory changes somewhere: ask again later */
  HK_UNMAP_GONE     /* and never the same again */
} hk_unmap_state;
typedef enum hk_unmap_result { HK_UNMAP_WATCHED, HK_UNMAP_BUSY, HK_UNMAP_FULL, HK_UNMAP_REFUSED } hk_unmap_result;

enum { HK_UNMAP_WHY = 160 };
/* NULL with the reason: the kernel has no such reports, or does not allow them. */
hk_unmap *hk_unmap_open(char why[HK_UNMAP_WHY]);
/* The ranges of the caller have been forgotten. */
void hk_unmap_close(hk_unmap *u);
/* Watches the pages of [at, at + bytes). HK_UNMAP_BUSY: memory changes somewhere, ask again later. HK_UNMAP_FULL: the
 * process would watch more than `most` bytes, or too many ranges. HK_UNMAP_REFUSED, with the reason: memory of another
 * kind. */
hk_unmap_result hk_unmap_watch(hk_unmap *u, const void *at, size_t bytes, uint64_t most, hk_unmap_range *out,
                               char why[HK_UNMAP_WHY]);
void hk_unmap_forget(hk_unmap *u, hk_unmap_range *r);
/* The number of marks on ranges so far: as long as it is the same, no range has gone. Takes no lock. */
uint64_t hk_unmap_marks(const hk_unmap *u);
/* Is the memory in the range the same as since hk_unmap_watch? Takes a system call. */
hk_unmap_state hk_unmap_look(hk_unmap *u, const hk_unmap_range *r);
/* The same without the call: true if a change is known. For a caller that has asked hk_unmap_look since it knows that
 * the memory is in use. */
bool hk_unmap_known_gone(hk_unmap *u, const hk_unmap_range *r);
#endif
