#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# guest.sh [--timeout S] [--cpus N] [--memory MB] [--keep FOLDER] COMMAND...
# Runs a command as root in a guest with Debian's kernel and two soft-RoCE devices, on a copy-on-write view of this
# machine's root file system, in the same folder.  Output and exit code are the command's; 124: the time limit, 125: the
# guest died, 77: no guest can be made here (a line says why).  The environment is not carried over: use env NAME=value.
# In the guest rxe0 (10.0.0.1, interface v0) and rxe1 (10.0.0.2, v1) are joined by a cable; `wire` breaks and repairs it (init).
# What the command writes into $JOB comes back in --keep's folder.
set -u
here=$(dirname "$(readlink -f "$0")")
root=$(dirname "$(dirname "$here")")
limit=300 cpus=2 memory=1024 keep=
while [ $# -gt 0 ]; do
  case $1 in
    --timeout) limit=$2; shift 2 ;;
    --cpus) cpus=$2; shift 2 ;;
    --memory) memory=$2; shift 2 ;;
    --keep) keep=$2; shift 2 ;;
    --) shift; break ;;
    --*) echo "guest.sh: unknown option $1" >&2; exit 2 ;;
    *) break ;;
  esac
done
[ $# -gt 0 ] || { echo "guest.sh: which command?" >&2; exit 2; }
(cd "$root" && tests/roce/image.sh) || exit $?
image=$root/build/roce

job=$(mktemp -d "${TMPDIR:-/tmp}/hocket-roce.XXXXXX")
end() {
  [ -z "$keep" ] || { mkdir -p "$keep" && cp -r "$job/." "$keep"; }
  rm -rf "$job"
}
trap end EXIT
{ printf 'cd %q\n' "$PWD"; printf 'exec'; printf ' %q' "$@"; echo; } >"$job/command"
cp "$here/init" "$job/init"
# QEMU appends to the descriptors that it is given, which must be for writing only.
exec 3> >(cat) 4> >(cat >&2)
readers=$(jobs -p)
# Nehalem has no AVX, which makes it the fastest to emulate.  A KVM that is itself emulated does not boot a stock kernel.
accelerator=${HOCKET_ROCE_ACCEL:-tcg,thread=multi} cpu=Nehalem
[ "$accelerator" = kvm ] && cpu=host
timeout -k 5 "$limit" qemu-system-x86_64 -accel "$accelerator" -cpu $cpu -smp "$cpus" -m "$memory" \
  -nodefaults -no-user-config -display none -no-reboot -kernel "$image/vmlinux" -initrd "$image/initrd.gz" \
  -append "console=ttyS0 quiet panic=-1 mitigations=off hocket=$image" -serial file:"$job/console.log" \
  -fsdev local,id=root,path=/,security_model=none,readonly=on,multidevs=remap \
  -device virtio-9p-pci,fsdev=root,mount_tag=root \
  -fsdev local,id=job,path="$job",security_model=none -device virtio-9p-pci,fsdev=job,mount_tag=job \
  -device virtio-serial-pci \
  -add-fd fd=3,set=1 -chardev file,id=out,path=/dev/fdset/1,append=on -device virtserialport,chardev=out,name=out \
  -add-fd fd=4,set=2 -chardev file,id=err,path=/dev/fdset/2,append=on -device virtserialport,chardev=err,name=err \
  </dev/null >"$job/qemu.log" 2>&1
code=$?
exec 3>&- 4>&-
# shellcheck disable=SC2086 # a list of process ids
[ -z "$readers" ] || wait $readers
[ -s "$job/code" ] && exit "$(cat "$job/code")"
case $code in 124 | 137) echo "guest.sh: killed after its limit of $limit s" >&2; exit 124 ;; esac
echo "guest.sh: the guest died:" >&2
tail -n 5 "$job/qemu.log" "$job/console.log" >&2
exit 125
