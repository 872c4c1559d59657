/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by children*.c. Members send each other notices as events of the parent (HK_EVENT_SHRINK). The first character
 * of a notice's text is its kind. */
#pragma once
#include "children.h"

enum {
  HK_CHILDREN_DIFFERENT = '!', /* verdict: the exclude lists differ */
  HK_CHILDREN_FAILED = '#'     /* a rank has failed to create a child */
};                             /* any other text: the list of a rank's shrink; empty: it is in no shrink */
/* Processes an event on this rank, and sends it to the others. */
void hk_children_announce(ncclComm_t parent, hk_event *e);
bool hk_children_excludes(const hk_init *how, int rank);

/* ---- children_lists.c ---- */
void hk_children_keep_list(ncclComm_t parent, const hk_event *e); /* under health.lock */
void hk_children_free_lists(ncclComm_t parent);
/* hk_children_begin_shrink announces this rank's list. hk_children_end_shrink announces that its shrink has ended, and
 * returns rc, or HK_ERR_USAGE if the lists differ. */
void hk_children_begin_shrink(hk_children_watch *w);
/* Called in waits. HK_ERR_REMOTE if a member has been in a later attempt with this list for a while: one of its earlier
 * calls was refused, so it does not know with which list the others made that call. */
hk_status hk_children_check_attempt(hk_children_watch *w);
/* After the join has failed: true if a member is in a later attempt; this rank then begins that attempt, too. */
bool hk_children_catch_up(hk_children_watch *w);
hk_status hk_children_end_shrink(hk_children_watch *w, hk_status rc);
/* Called in waits. HK_ERR_USAGE once the lists have differed for longer than a notice needs to arrive. */
hk_status hk_children_compare_lists(hk_children_watch *w);

/* ---- children_failures.c ---- */
void hk_children_keep_failure(ncclComm_t parent, const hk_event *e); /* under health.lock */
void hk_children_free_failures(ncclComm_t parent);
void hk_children_name_call(char name[HK_CALL_NAME], hk_call_kind kind, uint64_t number);
/* Reports that this rank has failed by itself. */
void hk_children_note_own(const hk_children_watch *w, const char *words);
/* True if a notice ends the creation of this child. */
bool hk_children_has_failed(const hk_children_watch *w);
/* Called in waits: an error if another member has failed. `watch`: an hk_children_watch. */
hk_status hk_children_check_failures(void *watch);
/* After a failure: reports it to the members, and returns the failure that all of them report. */
hk_status hk_children_settle_failure(hk_children_watch *w, hk_status rc);
