#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# The direction of includes under src/.
exec scripts/layers.sh
