#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# cluster.sh COMMAND...: runs COMMAND with a Slurm of its own on this machine: the real daemons from Debian, two nodes of 4 CPUs, n1 and n2.
# Both nodes are this host, so their ranks share memory; what a real cluster adds is only the network.  Needs root.  The daemons use
# folders and ports of their own, next to a Slurm that the machine may have, and end with the command.
set -u
if [ -z "${HK_SLURM_DIR:-}" ]; then
  HK_SLURM_DIR=$(mktemp -d) || exit 1
  export HK_SLURM_DIR
  # A mount namespace for the nodes' names; with the process namespace all daemons end, whatever they wait for.
  unshare -m -p --fork --kill-child --mount-proc "$0" "$@"
  code=$?
  rm -rf "$HK_SLURM_DIR"
  exit $code
fi
d=$HK_SLURM_DIR
export PATH=$PATH:/usr/sbin SLURM_CONF=$d/slurm.conf
chmod 755 "$d" && mkdir "$d/state" "$d/log" || exit 1
cp /etc/hosts "$d/hosts" && echo "127.0.0.1 n1 n2" >>"$d/hosts" && mount --bind "$d/hosts" /etc/hosts || exit 1

(umask 077 && head -c 1024 /dev/urandom >"$d/munge.key")
cat >"$d/slurm.conf" <<END
ClusterName=hocket
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=16817
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$d/munge.socket
StateSaveLocation=$d/state
SlurmdSpoolDir=$d/spool-%n
SlurmctldPidFile=$d/slurmctld.pid
SlurmdPidFile=$d/%n.pid
SlurmctldLogFile=$d/log/slurmctld
SlurmdLogFile=$d/log/%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
KillWait=2
NodeName=n[1-2] NodeHostname=$(hostname -s) NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
END

failed() { # what
  echo "$1 does not start:"
  tail -n 20 "$d"/log/*
  exit 1
}
start() { # name command...
  "${@:2}" >"$d/log/$1.out" 2>&1 &
}
start munged munged --foreground --force --key-file="$d/munge.key" --socket="$d/munge.socket" --pid-file="$d/munge.pid" \
  --seed-file="$d/munge.seed"
until [ -S "$d/munge.socket" ]; do
  kill -0 $! 2>/dev/null || failed munged
  sleep 0.05
done
start slurmctld slurmctld -D -c
start n1 slurmd -D -N n1
start n2 slurmd -D -N n2
deadline=$((SECONDS + 60))
until [ "$(sinfo -h -N -t idle -o %n 2>"$d/log/sinfo" | wc -l)" = 2 ]; do
  [ $SECONDS -lt $deadline ] || failed "a node"
  sleep 0.1
done
"$@"
