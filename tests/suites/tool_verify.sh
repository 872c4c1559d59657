#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hocket verify: algorithms by name, programs from files, and where it says that a fault is.
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
refuses "are not possible with it" verify -a ring file

# What plan writes, verify reads.
gives 0 sh -c "'$hocket' plan allreduce 64M -m 'nodes=2 of 4xa100:nvswitch2 nic=4x200' --program | '$hocket' verify -"
says "AllReduce"
says ": proved"

cat >"$tmp/pair.txt" <<'TEXT'
# two ranks that swap halves
AllReduce pair, rank 0 of 2, message split into 2, scratch 0
lane 0
  links: 0=send(1) 1=recv(1)
     0: send(1)[b1] <- in[b1]
     1: out[b0], send(1)[b0] <- recv(1)[b0] + in[b0], final
     2: out[b1] <- recv(1)[b1]
AllReduce pair, rank 1 of 2, message split into 2, scratch 0
lane 0
  links: 0=send(0) 1=recv(0)
     0: send(0)[b0] <- in[b0]
# this one adds up block 1
     1: out[b1], send(0)[b1] <- recv(0)[b1] + in[b1], final
     2: out[b0] <- recv(0)[b0]
TEXT
gives 0 "$hocket" verify "$tmp/pair.txt"
says "AllReduce pair, 2 ranks: proved, order of sums: sides"
gives 1 "$hocket" verify --fixed-order "$tmp/pair.txt"
says "it leaves in out[b0] the ranks' sum 1 + 0, not"
sed 's/recv(0)\[b1\] + in\[b1\], final/recv(0)[b1], final/' "$tmp/pair.txt" >"$tmp/wrong.txt"
gives 1 "$hocket" verify "$tmp/wrong.txt" "$tmp/pair.txt"
says "wrong.txt:13: AllReduce pair, 2 ranks: rank 1 lane 0 instruction 1"
says ">   13 |      1: out[b1], send(0)[b1] <- recv(0)[b1], final"
says "AllReduce pair, 2 ranks: proved"
sed 's/<- in\[b0\]/< in[b0]/' "$tmp/pair.txt" >"$tmp/syntax.txt"
gives 2 "$hocket" verify "$tmp/syntax.txt"
says "line 11: "
head -n 7 "$tmp/pair.txt" >"$tmp/half.txt"
gives 2 "$hocket" verify "$tmp/half.txt"
says "half.txt:2: the program of rank 1 of 2 is missing"
gives 2 "$hocket" verify "$tmp/none.txt"
says "$tmp/none.txt cannot be read: No such file"
gives 2 "$hocket" verify /dev/null
says "holds no program"
echo 'AllReduce x, rank 0 of 0, message split into 1, scratch 0' >"$tmp/empty.txt"
gives 2 "$hocket" verify "$tmp/empty.txt"
says "a collective of 0 ranks"
printf 'AllReduce\0' >"$tmp/zero.txt"
gives 2 "$hocket" verify "$tmp/zero.txt"
says "is no text"
if command -v jq >/dev/null; then
  gives 1 "$hocket" verify --json "$tmp/wrong.txt"
  got=$(jq -c '.proofs[0] | [.proved, .rank, .lane, .instruction, .line]' "$tmp/out")
  [ "$got" = "[false,1,0,1,13]" ] || complain "--json says $got of the wrong program"
else
  echo "SKIP: jq is not installed: JSON is not read"
fi
finish "$cases commands behave as they should"
