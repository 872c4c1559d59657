/* SPDX-License-Identifier: Apache-2.0 */
/* The making of children, for the files children*.c. What members have to say to each other they announce as events of
 * the parent (HK_EVENT_SHRINK): a text whose first character says what it is. */
#ifndef HK_COMM_CHILDREN_INTERNAL_H
#define HK_COMM_CHILDREN_INTERNAL_H
#include "children.h"

enum {
  HK_CHILDREN_DIFFERENT = '!', /* lists differ: a verdict */
  HK_CHILDREN_FAILED = '#'     /* a rank has failed in making a child */
};                             /* else: the list of a rank's shrink, or nothing if it is in none */
/* Takes an event in on this rank, and sends it to the others. */
void hk_children_announce(ncclComm_t parent, hk_event *e);
bool hk_children_excludes(const hk_init *how, int rank);

/* ---- children_lists.c ---- */
void hk_children_keep_list(ncclComm_t parent, const hk_event *e); /* under health.lock */
void hk_children_free_lists(ncclComm_t parent);
/* Announces this rank's list, and that its shrink is over: gives rc, or HK_ERR_USAGE if the lists differ. */
void hk_children_begin_shrink(hk_children_watch *w);
/* In waits: HK_ERR_REMOTE if a member has been in a later attempt with this list for a while: one of its calls was
 * refused, and it cannot know the list that the others had. */
hk_status hk_children_check_attempt(hk_children_watch *w);
/* After the join has failed: true if a member is in a later attempt, to which this rank goes, too. */
bool hk_children_catch_up(hk_children_watch *w);
hk_status hk_children_end_shrink(hk_children_watch *w, hk_status rc);
/* In waits: HK_ERR_USAGE if lists have differed for so long that no news is under way that would show that they do
 * not. */
hk_status hk_children_compare_lists(hk_children_watch *w);

/* ---- children_failures.c ---- */
void hk_children_keep_failure(ncclComm_t parent, const hk_event *e); /* under health.lock */
void hk_children_free_failures(ncclComm_t parent);
/* Reports that this rank has failed by itself. */
void hk_children_note_own(const hk_children_watch *w, const char *words);
/* Is there a notice that ends the making of this child? */
bool hk_children_has_failed(const hk_children_watch *w);
/* In waits: has another member failed?  `watch`: an hk_children_watch. */
hk_status hk_children_check_failures(void *watch);
/* After a failure: reports it to the members, and gives the one that all of them report. */
hk_status hk_children_settle_failure(hk_children_watch *w, hk_status rc);
#endif
