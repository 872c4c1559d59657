#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# image.sh: makes the guest's kernel and first file system, once, in build/roce: kernel/ (Debian's package, unpacked), vmlinux, initrd.gz.
# The package comes from apt-get download, or is the file that HOCKET_ROCE_KERNEL names.  Ends with 77 and a line that says
# why where something is missing.
set -eu
out=build/roce
skip() { echo "SKIP: $*"; exit 77; }

[ "$(uname -m)" = x86_64 ] || skip "the guest with soft-RoCE is made for x86_64 only"
for tool in qemu-system-x86_64 busybox cpio modprobe depmod xz dpkg-deb readelf; do
  PATH=$PATH:/usr/sbin:/sbin command -v $tool >/dev/null || skip "no $tool: scripts/deps.sh roce installs it"
done
PATH=$PATH:/usr/sbin:/sbin
[ -s $out/vmlinux ] && [ -s $out/initrd.gz ] && exit 0
mkdir -p $out

package=${HOCKET_ROCE_KERNEL:-$(compgen -G "$out/linux-image-*.deb" | tail -n 1 || true)}
if [ -z "$package" ]; then
  command -v apt-get >/dev/null || skip "no apt-get to fetch a kernel; HOCKET_ROCE_KERNEL may name Debian's linux-image-*-amd64 package"
  name=$(apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)
  [ -n "$name" ] || skip "apt knows no linux-image-amd64: run apt-get update, or name a package in HOCKET_ROCE_KERNEL"
  (cd $out && apt-get -q download "$name") >$out/download.log 2>&1 ||
    skip "cannot download $name: $(grep -v '^$' $out/download.log | tail -n 1)"
  package=$(compgen -G "$out/linux-image-*.deb" | tail -n 1)
fi

rm -rf $out/kernel $out/initrd
dpkg-deb -x "$package" $out/kernel
version=$(ls $out/kernel/lib/modules)
depmod -b "$PWD/$out/kernel" "$version"

# An emulated CPU boots the unpacked kernel two seconds sooner than one that unpacks itself.  In the boot image the compressed
# kernel begins at a magic number; bytes after its end make the unpacker complain, so what counts is what comes out.
image=$out/kernel/boot/vmlinuz-$version
unpack() { # program pattern
  local at
  for at in $(LC_ALL=C grep -aboP "$2" "$image" | cut -d: -f1); do
    tail -c +$((at + 1)) "$image" | "$1" -dc >$out/vmlinux.new 2>/dev/null || true
    [ "$(head -c 4 $out/vmlinux.new | tr -d '\0')" = $'\177ELF' ] && return 0
  done
  return 1
}
unpack xz '\xfd7zXZ\x00' || unpack zstd '\x28\xb5\x2f\xfd' || { echo "no kernel found in $image"; exit 1; }
readelf -h $out/vmlinux.new >/dev/null

# The first file system has what it takes to mount this machine's root over 9p and go there.
mkdir -p $out/initrd/{bin,modules,dev,proc,sys,new}
cp "$(command -v busybox)" $out/initrd/bin/busybox
number=10
for module in $(modprobe -d "$PWD/$out/kernel" -S "$version" -aD virtio_pci 9pnet_virtio 9p overlay virtio_console |
  awk '$1 == "insmod" && !seen[$2]++ { print $2 }'); do
  to=$out/initrd/modules/$number-$(basename "$module")
  number=$((number + 1))
  case $module in *.xz) xz -dc "$module" >"${to%.xz}" ;; *) cp "$module" "$to" ;; esac
done
cat >$out/initrd/init <<'INIT'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t devtmpfs none /dev; mount -t proc none /proc; mount -t sysfs none /sys
for module in /modules/*; do insmod "$module" || echo "insmod $module failed"; done
options=trans=virtio,version=9p2000.L,msize=512000
mkdir -p /lower /writes
mount -t 9p -o $options,ro,cache=loose root /lower || poweroff -f
mount -t tmpfs -o size=75% none /writes
mkdir /writes/upper /writes/work
mount -t overlay -o lowerdir=/lower,upperdir=/writes/upper,workdir=/writes/work none /new || poweroff -f
mkdir -p /new/mnt/job
for folder in dev proc sys; do mount --move /$folder /new/$folder; done
mount -t 9p -o $options,cache=none job /new/mnt/job
exec switch_root /new /bin/bash /mnt/job/init
INIT
chmod +x $out/initrd/init
(cd $out/initrd && find . | cpio -o -H newc --quiet | gzip -1) >$out/initrd.gz.new
rm -rf $out/initrd
mv $out/initrd.gz.new $out/initrd.gz
mv $out/vmlinux.new $out/vmlinux
echo "made the guest of kernel $version in $out"
