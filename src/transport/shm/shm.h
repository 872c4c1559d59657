/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that the shm transport's files share. Other code uses it through hk_transport (transport.h). */
#pragma once
#include "../transport.h"

enum { HK_SHM_PAYLOAD = HK_QUESTION_BYTES, HK_SHM_REASON = HK_REASON_BYTES };

/* The functions of hk_transport that shm_region.c implements; transport.h describes them. */
const char *hk_shm_no_files(const hk_transport_state *s);
hk_status hk_shm_region_file(hk_transport_state *s, const hk_wait_env *wait, int peer, uint64_t region, int *fd,
                             size_t *bytes);
hk_status hk_shm_region_map(hk_transport_state *s, int peer, uint64_t region, char **base);
hk_status hk_shm_question(hk_transport_state *s, int peer, int fd, void *payload);
hk_status hk_shm_notice(hk_transport_state *s, int peer, int fd, void *payload);
void hk_shm_answer_with(hk_transport_state *s, hk_answer *answer, void *arg);
