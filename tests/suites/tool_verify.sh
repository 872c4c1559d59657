#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket verify: algorithms by name.
# check: covers=src/program/
set -u
. tests/golden/lib.sh

gives 0 "$hocket" verify --all --ranks 2,5
says " 0 rejected"
gives 0 "$hocket" verify --all --ranks 8 --hosts 2
says " 0 rejected"
gives 0 "$hocket" verify -a ring -c AllReduce -n 100 -s 2 -w 3
gives 1 "$hocket" verify -a ring -c allreduce -n 3 --slots 1
says "deadlock,"
narrow verify

# The order of sums: proved where it is marked, refused where it is demanded and not so.
gives 0 "$hocket" verify --all --fixed-order -a direct -n 2,17,33
says "fixed"
gives 1 "$hocket" verify -a ring -c allreduce -n 4 --fixed-order
says "((0 + 1) + 2) + 3, not 0 +"
gives 0 "$hocket" verify -a nvls -c allreduce
says "varies"
gives 0 "$hocket" verify -a halving --json
says '"order":"sides"'
refuses "what should be verified?" verify
refuses "did you mean 'ring'?" verify -a rign
refuses "is not like 8 or 2-16" verify --all -n 3-
refuses "is not like 8 or 2-16" verify --all -n 9-2
refuses "is not like 8 or 2-16" verify --all -n 100000
refuses "unexpected argument 'file'" verify -a ring file
refuses "hocket program check FILE" verify
finish "$cases commands behave as they should"
