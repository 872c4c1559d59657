# SPDX-License-Identifier: Apache-2.0
"""The variables that NVIDIA's library names are those of tests/golden/nccl_variables.txt, of which test_param checks that this
library knows each.  nccl_variables.py LIBNCCL [--update]"""
import re
import sys

LIST = 'tests/golden/nccl_variables.txt'
# What the library's strings have besides: subsystems, values of enums, macros.
OTHERS = re.compile(r'''NCCL_(ALL|ALLOC|ALLOC_HOST|BOOTSTRAP|CALL|COLL|DESTROY|GRAPH|INIT|NVLS|P2P|PROFILE|PROXY|RAS|REG|SHM|TUNING
    |CFT|CFT_(MULTIMEM|NONE|TEAM_\w+)|CRYPT_HELLO_\w+|CTA_POLICY_\w+|DEVICE_UNPACK|DEV_WORK_\w+|ENCRYPTION_MODE_\w+
    |GIN_(CONNECTION_\w+|IB_ALL\w+_TAG|MAX_TYPES|TYPE_\w+)|IB_(MLX_VENDOR_ID|RAIL_POLICY_\w+|SL_DEFAULT|TC_DEFAULT)
    |IPC_(COLLECTIVE|SENDRECV)|LOG_\w+|MAX_CGA_CLUSTER_SIZE|NETDEVS_POLICY_AUTO|NET_(DEVICE|MERGE_POLICY)_\w+
    |NUM_RMA_INT_CTX_DEFAULT|PARAM_(FLAG|TYPE)_\w+|PROFILER_THREAD_\w+|SIGNAL|SIGNAL_NONE|SPLIT_NOCOLOR|SYMK_\w+
    |WIN_COLL_SYMMETRIC|\w+_INITIALIZER)''', re.X)


def main():
    with open(sys.argv[1], 'rb') as f:
        found = {n.decode() for n in re.findall(rb'(?<![A-Za-z0-9_])NCCL_[A-Z0-9_]+(?![A-Za-z0-9_])', f.read())}
    found = sorted(n for n in found if not OTHERS.fullmatch(n) and not n.endswith('_'))
    if '--update' in sys.argv:
        with open(LIST, 'w') as f:
            f.write('\n'.join(found) + '\n')
    with open(LIST) as f:
        listed = f.read().split()
    wrong = ['new: ' + n for n in found if n not in listed] + ['gone: ' + n for n in listed if n not in found]
    print('\n'.join(wrong) or f'{len(found)} variables, as in {LIST}')
    return bool(wrong)


if __name__ == '__main__':
    sys.exit(main())
