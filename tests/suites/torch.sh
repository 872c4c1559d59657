#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=400
# PyTorch's torch.distributed with the backend hocket, if its wheel is there already: `make check-torch` installs it.
set -u
OWN=no INSTALL=no exec tests/python/check_torch.sh
