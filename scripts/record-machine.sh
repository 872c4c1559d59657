#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# record-machine.sh FOLDER: copies what detection and the doctor look at in /sys and /proc, for `hocket topo --file FOLDER` and
# `hocket doctor --root FOLDER` elsewhere: a bug report, a test.  It holds no host name and no IP address but those of
# RoCE GIDs; look through it before you send it.
set -u
[ $# = 1 ] || { echo "usage: $0 FOLDER"; exit 2; }
[ ! -e "$1" ] || { echo "$1 is there already"; exit 2; }
to=$1

# One file, by its path; what cannot be read is left out.
copy() {
  local file
  for file; do
    if [ ! -f "$file" ] || [ ! -r "$file" ]; then continue; fi
    mkdir -p "$to${file%/*}"
    cat "$file" >"$to$file" 2>/dev/null || rm -f "$to$file"
  done
}
# A link, and the folder that it leads to.
follow() {
  local real
  [ -e "$1" ] || return 1
  real=$(readlink -f "$1")
  mkdir -p "$to${1%/*}" "$to$real"
  [ -L "$1" ] && [ ! -e "$to$1" ] && cp -P "$1" "$to$1"
  real_folder=$real
}

copy /proc/cpuinfo /proc/self/{limits,status,cgroup} /proc/driver/nvidia/version /proc/sys/kernel/{yama/ptrace_scope,numa_balancing} \
  /sys/hypervisor/type /sys/module/nvidia_peermem/version /sys/kernel/mm/transparent_hugepage/{,shmem_}enabled
cpu=/sys/devices/system/cpu
copy $cpu/online /sys/devices/system/node/node*/cpulist $cpu/cpu[0-9]*/topology/{physical_package_id,thread_siblings_list} \
  $cpu/cpu[0-9]*/cache/index[23]/{type,size,shared_cpu_list} $cpu/cpu[0-9]*/cpufreq/scaling_governor
for device in /sys/bus/pci/devices/*; do
  follow "$device" || continue
  folder=$real_folder
  copy "$folder"/{class,vendor,device,subsystem_vendor,subsystem_device,numa_node,config} \
    "$folder"/{current,max}_link_{speed,width} "$folder/iommu_group/type"
  [ -L "$folder/physfn" ] && cp -P "$folder/physfn" "$to$folder/"
done
for device in /sys/class/infiniband/*; do
  follow "$device" || continue
  copy "$real_folder"/{node_guid,sys_image_guid,parent} "$real_folder"/ports/*/{state,rate,link_layer,gids/*,gid_attrs/types/*}
done
for interface in /sys/class/net/*; do
  follow "$interface" || continue
  folder=$real_folder
  copy "$folder"/{operstate,carrier,speed,bonding/slaves,bridge/bridge_id}
  for link in "$folder"/{device,master,lower_*}; do
    [ -L "$link" ] && cp -P "$link" "$to$folder/"
  done
done
nodes=/sys/class/kfd/kfd/topology/nodes
copy $nodes/*/{properties,name} $nodes/*/io_links/*/properties
echo "recorded in $to: $(find "$to" -type f | wc -l) files"
