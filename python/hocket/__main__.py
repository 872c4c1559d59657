# SPDX-License-Identifier: Apache-2.0
"""`python -m hocket` is the command hocket."""
import sys

from ._entry import start

start("hocket", sys.argv[1:])
