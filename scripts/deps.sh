#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# deps.sh SET...: installs with apt what is missing of the sets `build`, `check`, `bench`, `roce`, `slurm`, `deb`, `site`, `wheel`; says what and why,
# says nothing when all is there.  Things are looked for by what they give (a command, a header), so that other systems work too.
# shellcheck disable=SC2317 # the sets are called by name
set -u
want_build() {
  need "$(package_of "${CC:-gcc}")" "cmd:${CC:-gcc}" "the compiler"
  need libc6-dev "file:/usr/include/stdio.h" "the C library's headers"
  case ${CC:-gcc} in aarch64-linux-gnu-gcc) need libc6-dev-arm64-cross "file:/usr/aarch64-linux-gnu/include/stdio.h" "the C library of aarch64" ;; esac
  need make "cmd:make" "runs the Makefile"
  optional libhwloc-dev "file:/usr/include/hwloc.h" "CPUs and PCI devices of unusual machines"
  optional libexpat1 "so:libexpat.so.1" "reads NCCL's topology and graph XML"
  optional libjansson4 "so:libjansson.so.4" "reads programs in JSON"
}
want_check() {
  want_build
  need check "file:/usr/include/check.h" "the unit test framework"
  need libsubunit-dev "lib:libsubunit" "the unit test framework links with it"
  need pkg-config "cmd:pkg-config" "tests of the installed library"
  optional "$(cxx_of "${CC:-gcc}")" "cxx:${CC:-gcc}" "compiles the GPU kernels for a CPU"
  optional clang "cmd:clang" "builds everything with a second compiler"
  optional libclang-rt-dev "asan:clang" "the second compiler's run time of ASan and UBSan"
  optional lld "cmd:ld.lld" "links the tests in half of the time"
  optional clang-format "cmd:clang-format" "checks the form of the sources"
  optional libexpat1-dev "file:/usr/include/expat.h" "what we declare of expat is compared with it"
  optional libjansson-dev "file:/usr/include/jansson.h" "what we declare of jansson is compared with it"
  optional libibverbs-dev "file:/usr/include/infiniband/verbs.h" "what we declare of verbs is compared with it"
  optional librdmacm-dev "file:/usr/include/rdma/rdma_cma.h" "what we declare of rdma_cm is compared with it"
  optional libc6-dev-arm64-cross "file:/usr/aarch64-linux-gnu/include/stdio.h" "compiles for another kind of CPU"
  optional iproute2 "cmd:ip" "hosts as network namespaces"
  optional python3 "cmd:python3" "runs the fault matrix and the tests of the Python package"
  optional python3-venv "py:ensurepip" "tests of the wheel install it in an environment of its own"
  optional python3-numpy "file:/usr/lib/python3/dist-packages/numpy" "the Python package is tried on its arrays"
  optional python3-mpi4py "file:/usr/lib/python3/dist-packages/mpi4py" "the Python package joins its communicators"
  optional python3-yaml "file:/usr/lib/python3/dist-packages/yaml" "reads the manifest of docs/deploy.md"
  optional pyflakes3 "cmd:pyflakes3" "looks for faults in the Python sources"
  optional procps "cmd:ps" "process tests look at the process table"
  optional jq "cmd:jq" "reads the JSON that commands write"
  optional mandoc "cmd:mandoc" "checks the manual pages"
  optional doxygen "cmd:doxygen" "makes the site of the documents"
  optional graphviz "cmd:dot" "draws pictures of machines"
  optional gnuplot-nox "cmd:gnuplot" "draws the perf programs' plots"
  optional openmpi-bin "cmd:mpirun.openmpi" "a launcher of ranks"
  optional libopenmpi-dev "file:/usr/lib/$(uname -m)-linux-gnu/openmpi/include/mpi.h" "an example links MPI"
  optional mpich "cmd:mpirun.mpich" "a launcher of ranks"
  optional abigail-tools "cmd:abidiff" "compares the library's ABI with the newest release"
  optional shellcheck "cmd:shellcheck" "checks the shell scripts"
  want_roce
}
want_bench() {
  want_build
  optional iperf3 "cmd:iperf3" "TCP's limit, to compare with"
  optional python3-venv "py:ensurepip" "MPIs to compare with, from PyPI"
  optional iproute2 "cmd:ip" "hosts as network namespaces"
}
# A Slurm of its own: tests/slurm/.
want_slurm() {
  optional slurm-wlm "cmd:srun" "a launcher of clusters"
  optional munge "file:/usr/sbin/munged" "Slurm's daemons recognise each other by it"
}
# A guest with soft-RoCE: tests/roce/.
want_roce() {
  optional qemu-system-x86 "cmd:qemu-system-x86_64" "a guest with RDMA devices"
  optional busybox-static "cmd:busybox" "the guest's first file system"
  optional cpio "cmd:cpio" "packs it"
  optional kmod "cmd:modprobe" "finds the guest's modules"
  optional xz-utils "cmd:xz" "unpacks the guest's kernel"
  optional iproute2 "cmd:rdma" "makes the guest's RDMA devices"
  optional ibverbs-providers "lib:libibverbs/librxe-rdmav34" "RDMA devices in software"
  optional perftest "cmd:ib_write_bw" "RDMA's limits, to compare with"
}
want_wheel() {
  need python3 "cmd:python3" "builds the wheel"
  optional libpython3-dev "python:Python.h" "the wheel has compiled code for small calls of torch.distributed"
  need python3-venv "py:ensurepip" "the tools that build the wheel stay in an environment of their own"
}
want_deb() {
  need build-essential "file:/usr/share/build-essential" "builds Debian packages"
  need debhelper "cmd:dh" "builds Debian packages"
  need dh-python "cmd:dh_python3" "packs the Python module"
  need libhwloc-dev "file:/usr/include/hwloc.h" "CPUs and PCI devices of unusual machines"
  need python3 "cmd:python3" "packs the Python module"
  need libpython3-dev "python:Python.h" "compiles a part of the Python module"
}
want_site() {
  need python3 "cmd:python3" "Sphinx makes the site"
  need python3-venv "py:ensurepip" "Sphinx stays in an environment of its own"
  need doxygen "cmd:doxygen" "reads the headers"
  need mandoc "cmd:mandoc" "reads the manual pages"
  optional chromium "cmd:chromium" "make check-site looks at the pages"
}
want_plot() { need gnuplot-nox "cmd:gnuplot" "draws the plots"; }

# The package that gives a compiler of C the language of C++: gcc-13 takes the parts of g++-13.
cxx_of() { # compiler
  case $1 in gcc*) echo "g++${1#gcc}" ;; *) echo g++ ;; esac
}
package_of() { # compiler: aarch64-linux-gnu-gcc is in gcc-aarch64-linux-gnu
  case $1 in *-linux-gnu-gcc) echo "gcc-${1%-gcc}" ;; *) echo gcc ;; esac
}
have() {
  case $1 in
    cmd:*) PATH=$PATH:/usr/sbin:/sbin command -v "${1#cmd:}" >/dev/null ;;
    file:*) [ -e "${1#file:}" ] ;;
    asan:*) echo 'int main(void) { return 0; }' | "${1#asan:}" -fsanitize=address -x c -o /dev/null - 2>/dev/null ;;
    cxx:*) "${1#cxx:}" -x c++ -std=c++17 -fsyntax-only /dev/null 2>/dev/null ;;
    so:*) compgen -G "/lib*/*/${1#so:}" >/dev/null || compgen -G "/usr/lib*/${1#so:}" >/dev/null ;;
    python:*) [ -e "$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))')/${1#python:}" ] ;;
    py:*) python3 -c "import ${1#py:}" 2>/dev/null ;;
    lib:*) for file in /usr/lib*/*/"${1#lib:}".{so,a} /usr/lib*/"${1#lib:}".{so,a}; do [ -e "$file" ] && return 0; done
      return 1 ;;
  esac
}
needed=() extra=()
need() { have "$2" || { needed+=("$1"); echo "missing: $1 ($3)"; }; }
optional() { have "$2" || { extra+=("$1"); echo "missing: $1 ($3; optional)"; }; }

# A package manager's complaint is shown only when it matters.
log=$(mktemp) && trap 'rm -f "$log"' EXIT
as_root=()
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" >"$log" 2>&1; }

may_install() {
  command -v apt-get >/dev/null || { reason="apt-get is not here"; return 1; }
  [ "$(id -u)" = 0 ] && return 0
  command -v sudo >/dev/null || { reason="you are not root and there is no sudo"; return 1; }
  as_root=(sudo)
  if [ -t 0 ]; then sudo -v || { reason="sudo refused"; return 1; }; else
    sudo -n true 2>/dev/null || { reason="sudo asks for a password and there is no terminal"; return 1; }
  fi
}
updated=
install() {
  [ $# = 0 ] && return 0
  # Package lists of a fresh machine are empty, those of an old one may name files that are gone.
  if [ -z "$updated" ] && ! compgen -G '/var/lib/apt/lists/*_Packages*' >/dev/null; then update; fi
  echo "installing: $*"
  apt install -y --no-install-recommends "$@" && return 0
  [ -z "$updated" ] || return 1
  update && apt install -y --no-install-recommends "$@"
}
update() {
  updated=1
  echo "apt-get update"
  apt update || { tail -n 3 "$log"; return 1; }
}

for set in "$@"; do "want_$set" || { echo "deps.sh: no set called $set"; exit 2; }; done
mapfile -t needed < <(printf '%s\n' "${needed[@]}" | sort -u | sed '/^$/d')
mapfile -t extra < <(printf '%s\n' "${extra[@]}" | sort -u | sed '/^$/d')
[ ${#needed[@]}${#extra[@]} = 00 ] && exit 0

if ! may_install; then
  echo "cannot install: $reason.  As root, run:  apt-get install ${needed[*]} ${extra[*]}"
  [ ${#needed[@]} = 0 ] || exit 1
  echo "going on without: ${extra[*]} (tests that use them will say SKIP)"
  exit 0
fi
if ! install "${needed[@]}"; then
  tail -n 5 "$log"
  echo "cannot install ${needed[*]}: see above; is there a network?"
  exit 1
fi
# One by one: what a distribution does not have must not keep the rest away.
for package in "${extra[@]}"; do
  install "$package" || { tail -n 2 "$log"; echo "going on without $package (tests that use it will say SKIP)"; }
done
exit 0
