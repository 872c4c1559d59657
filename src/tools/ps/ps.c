/* SPDX-License-Identifier: Apache-2.0 */
/* `hocket ps`: what the ranks of running jobs do, and which of them keeps the others waiting. */
#include "ps.h"

typedef hk_ps_options options;

static int ps_run(void *into, int nargs, char **args) {
  options *o = into;
  o->address = nargs ? args[0] : NULL;
  return hk_ps_show(o, "");
}

static const hk_tool_option rows[] = {HK_PS_ROWS, {0}};

const hk_tool hk_tool_ps = {
    .name = "ps",
    .about = "what the ranks of running jobs do, and who keeps the others waiting",
    .usage = "[HOST[:PORT]]",
    .text = "Asks the processes of this host that use the library, and by what they know also the ranks of "
            "their communicators on other hosts. For each rank: its call, the number of its operation, since when it "
            "waits and for whom. Of ranks that wait, it names the one that they wait for: a process that is stopped, "
            "gone or cannot be reached, a rank that has not begun the operation, or one in another call.\n\n"
            "LATE and BY are the collectives to which a rank came later than others that waited for it, and by how "
            "much in all, since the communicator began. A rank that was the last one to most of the latest "
            "collectives is named.\n\n"
            "With HOST it asks NCCL's RAS service there (NCCL_RAS_ADDR, port 28028), which by default listens on "
            "localhost only. It tells the same, whether it is Hocket's or, in part, NCCL's.\n\n"
            "Processes of other users are not shown, except to root. A process with HOCKET_STATUS=0 does not answer. "
            "In containers, run it in the container (the network namespace) of a rank. Ranks that encrypt their "
            "connections are asked with the same key: set what the job has set.",
    .findings = "a rank keeps others waiting, or does not answer",
    .examples = "hocket ps\n  all communicators with ranks on this host\n"
                "hocket ps --job 4711\n  those of Slurm's job 4711\n"
                "hocket ps --json --late 200\n  for a program; waits of 0.2 s already count\n"
                "hocket ps node7\n  what the RAS service of node7 knows",
    .options = rows,
    .bytes = sizeof(options),
    .most = 1,
    .run = ps_run};
