/* SPDX-License-Identifier: Apache-2.0 */
/* A machine with RDMA devices for tests: fake0, fake1, ... of the fake libibverbs.so.1 and libmlx5.so.1, and the /sys
 * that goes with them. */
#ifndef HK_TEST_FAKE_RDMA_H
#define HK_TEST_FAKE_RDMA_H
#include <dlfcn.h>
#include <libgen.h>
#include <linux/capability.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include "../../src/base/param.h"
#include "../fakes/verbs.h"
#include "fake_machine.h"

/* What getrlimit says of memory that may be locked: a test may not be allowed to raise its limit. */
extern bool rdma_plenty, rdma_scarce;

/* Has or drops CAP_IPC_LOCK; false: it is not permitted. */
bool rdma_lock(bool has);

void rdma_param(const char *name, const char *value);

/* The GIDs of a card with an IPv4 address, in the order in which a kernel gives them. */
void rdma_port(int device);

/* Loads a fake before the code under test looks for the library: the loader then takes the one that is there.  Gives a
 * symbol of it. */
void *rdma_fake(const char *file, const char *symbol);

fake_verbs_state *rdma_begin(int devices);
/* Nothing is left over. */
void rdma_end(const fake_verbs_state *v);
#endif
