#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=540 long=suites
# RDMA for real: collectives between two soft-RoCE devices in a guest.  `make check-roce` runs much more.
set -u
tests/roce/guest.sh --timeout 500 env HK_BUILD="$HK_BUILD" bash -c \
  'tests/roce/collectives.sh short && tests/roce/devices.sh short'
