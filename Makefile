# SPDX-License-Identifier: Apache-2.0
# Everything is built under build/<compiler>[-<sanitizers>]/, nothing beside the sources.  `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC := gcc
endif
SAN ?=
PREFIX ?= /opt/hocket
LIBDIR ?= $(PREFIX)/lib
DESTDIR ?=
comma := ,
BUILD ?= build/$(notdir $(firstword $(CC)))$(if $(SAN),-$(subst $(comma),-,$(SAN)))

# -Werror in what checks (see KEEP_WARNINGS), empty for users: the next compiler or header warns of something new, and must not break builds.
WERROR ?=
WARN := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla
CFLAGS ?= -O2 -g
# A test is compiled as often as it runs, so -O0 costs least, a third of -O1, but for the tests that compute much. COLD_CFLAGS are for
# what takes a build for sanitizers longer to compile than to run: scripts/check.sh has -O0 there.
ifeq ($(origin CFLAGS),file)
TEST_CFLAGS := -O0 -g1
HOT_TEST_CFLAGS := -O1 -g1
endif
COLD_CFLAGS ?=
# gcc warns that TSan does not model fences; ours stand beside atomics that it does model.
# clang's UBSan reports NULL + 0, which C2y allows, and needs C++'s run time in the emulated GPU's kernels; it has other
# names for gcc's macros.
SAN_CFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all \
              $(if $(findstring clang,$(CC)),-fno-sanitize=pointer-overflow$(comma)function $(if $(findstring address,$(SAN)),-D__SANITIZE_ADDRESS__) \
                $(if $(findstring thread,$(SAN)),-D__SANITIZE_THREAD__),$(if $(findstring thread,$(SAN)),-Wno-tsan)))
HK_CFLAGS := -std=c11 -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -Iinclude -fPIC -fvisibility=hidden -fno-math-errno \
             -pthread $(WARN) -MMD -MP $(SAN_CFLAGS)
HK_LDFLAGS := -pthread $(if $(SAN),-fsanitize=$(SAN))
# A file whose name ends in _avx2 and the like is compiled for these instructions, where the machine has them at all.
ifneq ($(filter x86_64%,$(shell $(CC) -dumpmachine 2>/dev/null)),)
CFLAGS_avx2 := -mavx2 -mfma -mf16c
CFLAGS_avx512 := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c -mavx2
endif

# gcc clears and copies structs of more than about 64 bytes by "rep stos" and "rep movs", whose start costs more than the
# stores: in the path of a call it moves them by vectors. Empty for other compilers.
HOT_CFLAGS := $(strip $(foreach s,vector_loop:1024:noalign$(comma)libcall:-1:noalign,$(shell \
                set -- -mmemset-strategy=$s -mmemcpy-strategy=$s; $(CC) "$$@" -x c -c /dev/null -o /dev/null 2>/dev/null && echo "$$@")))

# The library: every .c below src/, but for the programs. What computes, and the path of a call, is compiled for speed.
LIB_DIRS := $(filter-out perf tools tools/%,$(patsubst src/%,%,$(shell find src -mindepth 1 -type d | LC_ALL=C sort)))
CALL_DIRS := $(addprefix src/,api comm core failure rma run runtime)
COLD_DIRS := src/perf src/tools examples tests/helpers tests/faults tests/roce \
             $(addprefix src/,$(filter-out program% collectives% sim% kernels%,$(LIB_DIRS)))
LIB_SRC := $(foreach d,$(LIB_DIRS),$(wildcard src/$d/*.c))
PERF_SRC := $(wildcard src/perf/*.c)
TOOL_SRC := $(wildcard src/tools/*.c src/tools/*/*.c)
UNIT_SRC := $(wildcard tests/unit/test_*.c tests/integration/test_*.c)
SUPPORT_SRC := $(wildcard tests/support/*.c)
SUPPORT_OBJ = $(SUPPORT_SRC:%.c=$(BUILD)/%.o)
EXAMPLE_SRC := $(wildcard examples/*.c)
HELPER_SRC := $(wildcard tests/helpers/*.c)
FAKE_SRC := $(wildcard tests/fakes/*.c)

LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
# The GPU kernels.  All of them take nvcc some minutes, and who has no GPU does not want to wait for them.  So NVCC unset means: for
# the GPUs of this machine, if there are any and nvcc is found.  NVCC=yes (or a path) means for every architecture, NVCC=no none.
# One file for all compilers and sanitizers.  PTX of the newest is for those to come, that of the oldest for all between.
GPUS_HERE ?= $(wildcard /proc/driver/nvidia/gpus/*)
NVCC_HERE := $(firstword $(shell command -v nvcc) $(wildcard $(addsuffix /bin/nvcc,$(CUDA_HOME) $(CUDA_PATH) /usr/local/cuda)))
NVCC_HINT := it is in NVIDIA's CUDA toolkit, and in the Python package nvidia-cuda-nvcc; then NVCC=/path/to/nvcc
CARD_ARCHS = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -dc '0-9\n' | sort -nu)
EVERY_ARCH := 75 80 86 89 90 100 103 120
ifeq ($(origin NVCC),undefined)
NVCC := $(if $(GPUS_HERE),$(NVCC_HERE))
GPU_ARCHS ?= $(or $(if $(NVCC),$(CARD_ARCHS)),$(EVERY_ARCH))
KERNELS_WHY := $(if $(GPUS_HERE),no nvcc is found: $(NVCC_HINT),no GPU is here (NVCC=yes builds them for all GPUs, in some minutes))
else ifeq ($(NVCC),yes)
override NVCC := $(or $(NVCC_HERE),$(error NVCC=yes: no nvcc in PATH, CUDA_HOME or /usr/local/cuda: $(NVCC_HINT)))
else ifeq ($(NVCC),no)
override NVCC :=
endif
GPU_ARCHS ?= $(EVERY_ARCH)
FATBIN := build/cuda/kernels.fatbin
PTX_ARCHS := $(sort $(firstword $(GPU_ARCHS)) $(lastword $(GPU_ARCHS)))
GPU_CXXFLAGS := -std=c++17 -O3 -fmad=false -maxrregcount=128
GPU_FLAGS := $(GPU_CXXFLAGS) $(foreach a,$(GPU_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
             $(foreach a,$(PTX_ARCHS),-gencode arch=compute_$a,code=compute_$a)
ifneq ($(NVCC),)
CFLAGS_image := -DHK_GPU_FATBIN='"$(FATBIN)"' -DHK_GPU_ARCHS='"$(GPU_ARCHS)"' \
                -DHK_GPU_NVCC='"$(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')"'
$(BUILD)/src/kernels/gpu_image.o: $(FATBIN)
endif
# One program, and a link to it for each operation.
PERF_OBJ := $(PERF_SRC:%.c=$(BUILD)/%.o) $(BUILD)/src/base/json.o
PERF_NAMES := $(shell sed -n 's/^ *OPERATION.\([a-z_]*\), ".*/\1_perf/p' src/perf/operations.c)
PERF_BIN := $(BUILD)/bin/hocket-perf $(PERF_NAMES:%=$(BUILD)/bin/%)
TOOL_OBJ := $(TOOL_SRC:%.c=$(BUILD)/%.o)
TOOL := $(if $(TOOL_SRC),$(BUILD)/bin/hocket)
# Parts of the tool that have tests of their own.
TUNE_OBJ := $(patsubst %,$(BUILD)/src/tools/tune/%.o,choices fit look polish times)
UNIT_BIN := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(UNIT_SRC)))
# Plugins that tests load: tests/plugins/NAME.c becomes plugins/libNAME.so.
PLUGIN_SRC := $(wildcard tests/plugins/*.c)
PLUGIN_SO := $(PLUGIN_SRC:tests/plugins/%.c=$(BUILD)/plugins/lib%.so)
HELPER_BIN := $(HELPER_SRC:tests/helpers/%.c=$(BUILD)/helpers/%)
# The CUDA driver that runs on the CPU, kernels of the library compiled for it, and its tests' own (tests/cudaemu/).
EMU_SRC := $(wildcard tests/cudaemu/*.c tests/ptxemu/*.c)
EMU_OBJ := $(EMU_SRC:%.c=$(BUILD)/%.o)
EMU_SO := $(if $(EMU_SRC),$(BUILD)/cudaemu/libcuda.so.1) \
          $(if $(shell $(CC) -x c++ -std=c++17 -fsyntax-only /dev/null 2>/dev/null && echo yes),$(if $(wildcard src/kernels/cuda/*.cu),$(BUILD)/cudaemu/kernels.so) \
            $(BUILD)/cudaemu/test_kernels.so)
# What runs in the guest with RDMA devices; it looks at the library's internals.
ROCE_BIN := $(patsubst tests/roce/%.c,$(BUILD)/roce/%,$(wildcard tests/roce/*.c))
# The fault matrix: one rank of a job, public API only.
FAULT_OBJ := $(patsubst %.c,$(BUILD)/%.o,$(filter-out %/fail.c,$(wildcard tests/faults/*.c)))
FAULT_BIN := $(if $(FAULT_OBJ),$(BUILD)/faults/rank $(BUILD)/faults/libfail.so)
FAKE_SO := $(patsubst tests/fakes/%.c,$(BUILD)/fakes/%.so.1,$(filter tests/fakes/lib%,$(FAKE_SRC)))
EXAMPLE_BIN := $(EXAMPLE_SRC:examples/%.c=$(BUILD)/examples/%)
# The Python package, complete in a folder: PYTHONPATH=build/gcc/python. Its library has a name of its own, so that a process
# can have NCCL's, too; its binaries have no debug information.
PYTHON := $(BUILD)/python
PYTHON_SRC := $(wildcard python/hocket/*.py python/hocket/*/*.py) python/hocket/py.typed
PYTHON_SO := $(PYTHON)/hocket/lib/libhocket.so
PYTHON_BIN := $(PYTHON)/hocket/bin/hocket-perf $(PYTHON)/hocket/bin/hocket
PYTHON_ALL := $(if $(SAN),,$(PYTHON_SO) $(PYTHON_BIN) $(PYTHON_SRC:python/%=$(PYTHON)/%) $(PYTHON)/hocket/_generated.py \
              $(patsubst include/%,$(PYTHON)/hocket/include/%,$(wildcard include/*.h)))
ALL_OBJ := $(sort $(LIB_OBJ) $(TOOL_OBJ) $(PERF_OBJ)) $(UNIT_SRC:%.c=$(BUILD)/%.o) \
           $(EXAMPLE_SRC:%.c=$(BUILD)/%.o) $(HELPER_SRC:%.c=$(BUILD)/%.o) $(ROCE_BIN:$(BUILD)/roce/%=$(BUILD)/tests/roce/%.o) $(SUPPORT_OBJ) $(FAULT_OBJ) $(BUILD)/tests/faults/fail.o $(FAKE_SRC:%.c=$(BUILD)/%.o) $(EMU_OBJ)

SO := $(BUILD)/lib/libnccl.so.2
LIBA := $(BUILD)/libhocket-internal.a
# Manual pages: one for all perf binaries, with a pointer from each name (none from a sanitizer build, which may not run).
MAN := $(BUILD)/man/man7/hocket-parameters.7 $(if $(PERF_BIN),$(if $(SAN),,$(BUILD)/man/man1/hocket-perf.1 \
       $(PERF_NAMES:%=$(BUILD)/man/man1/%.1)))
MAN_SRC := $(wildcard man/*.[1-8])
# What `hocket` writes about itself: a page for each command.
TOOL_NAMES := $(shell sed -n 's/^HK_TOOL(\(.*\))/\1/p' src/tools/commands.def)
MAN += $(if $(SAN),,$(BUILD)/man/man1/hocket.1 $(TOOL_NAMES:%=$(BUILD)/man/man1/hocket-%.1))
LINK_SO = -L$(BUILD)/lib -lnccl -Wl,-rpath,'$$ORIGIN/../lib' $(HK_LDFLAGS) -lm
CHECK_LIBS = $(or $(shell pkg-config --libs check 2>/dev/null),-lcheck -lsubunit -lrt -lm)
# Without a -j of the user's, the targets that build for themselves use every core.
CORES = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))

ifeq ($(V),)
say = @printf '  %-6s %s\n' $1 $2;
else
say =
endif

.PHONY: all kernels-note objects lib perf tool python wheel tests test-parts test-libraries check-build examples docs man demo deps \
        check check-san check-tsan check-roce check-slurm check-debian check-plugins check-faults check-allocations check-frameworks \
        check-torch figures fuzz mutations gpu-mutations gpu-modes gpu-ptx sass gpu-pack gpu-check gpu-bench bench bench-peers \
        bench-kernels install uninstall \
        clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: lib perf tool examples man $(if $(wildcard /usr/include/check.h),tests) kernels-note ## library, programs, examples, tests (default)
kernels-note:
	@echo "GPU kernels: $(if $(NVCC),in the library: sm_$(subst $() ,$(comma) ,$(GPU_ARCHS)) and PTX of $(PTX_ARCHS) for others (by $(NVCC)),none$(if $(KERNELS_WHY),: $(KERNELS_WHY)))"
lib: $(SO) $(LIBA) ## libnccl.so.2
	@:
perf: $(PERF_BIN) ## the *_perf binaries
	@:
tool: $(TOOL) ## the command hocket
	@:
# Also for what these run: scripts and their makes.
check check-san check-tsan check-roce check-slurm check-faults check-allocations check-plugins check-frameworks check-torch fuzz mutations \
gpu-modes gpu-ptx: export WERROR := -Werror
objects: $(ALL_OBJ)
	@:
# What tests are linked from, and what they load.
test-parts: $(UNIT_SRC:%.c=$(BUILD)/%.o) $(TUNE_OBJ) $(BUILD)/libsupport.a $(LIBA) $(HELPER_BIN) test-libraries
	@:
test-libraries: $(PLUGIN_SO) $(FAKE_SO) $(EMU_SO)
	@:
tests: test-parts $(UNIT_BIN) $(FAULT_BIN) $(ROCE_BIN) ## unit tests and the suites' helper programs, without running them
	@:
python: $(PYTHON_ALL) ## the Python package, in build/gcc/python (PYTHONPATH)
	@:
examples: $(EXAMPLE_BIN) ## those of examples/ that need nothing but the library
	@:
check-build: all python tests
	@:
man: $(MAN)
	@:

# Objects depend on the flags in force: a change of compiler or flags rebuilds, and so do headers that are installed after
# the first build (src/topo/detect_hwloc.c).
quoted = '$(subst ','\'',$1)'
FLAGS_TEXT = $(shell $(CC) --version 2>/dev/null | head -n 1) $(CC) $(HK_CFLAGS) $(CFLAGS) $(TEST_CFLAGS) $(COLD_CFLAGS) $(HOT_CFLAGS) $(LDFLAGS)$(if $(NVCC), $(NVCC)) $(wildcard /usr/include/hwloc.h)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' $(call quoted,$(FLAGS_TEXT)) | cmp -s - $@ || \
	  printf '%s\n' $(call quoted,$(FLAGS_TEXT)) > $@

# The list of the library's and the command's files: one that is gone relinks.
$(BUILD)/files: FORCE
	@mkdir -p $(@D); echo "$(LIB_SRC) $(TOOL_SRC)" | cmp -s - $@ || echo "$(LIB_SRC) $(TOOL_SRC)" > $@

# WERROR is not among the flags: an object that was made without a warning is the same with it, so that `make check` after `make demo`
# compiles nothing twice. What the compiler says of a file stays in OBJECT.warnings; where warnings are errors, such an object is made again.
KEEP_WARNINGS = $(if $(MAKE_TERMERR),-fdiagnostics-color=always) $(WERROR) 2> $@.warnings; rc=$$?; \
  if [ -s $@.warnings ]; then cat $@.warnings >&2; else rm -f $@.warnings; fi; exit $$rc
ifneq ($(WERROR),)
$(patsubst %.warnings,%,$(shell find $(BUILD) -name '*.warnings' 2>/dev/null)): FORCE
endif

$(foreach d,$(COLD_DIRS),$(eval $(BUILD)/$d/%.o: FOLDER_CFLAGS = $(COLD_CFLAGS)))
$(BUILD)/src/tools/tune/%.o: FOLDER_CFLAGS = # test_tune runs these
$(foreach d,$(CALL_DIRS),$(eval $(BUILD)/$d/%.o: FOLDER_CFLAGS = $(COLD_CFLAGS) $(HOT_CFLAGS)))
$(BUILD)/src/kernels/%.o: FOLDER_CFLAGS = $(HOT_CFLAGS)
$(foreach d,unit integration fakes,$(eval $(BUILD)/tests/$d/%.o: FOLDER_CFLAGS = $(TEST_CFLAGS) $(COLD_CFLAGS)))
# These compute or compare much, or contain GPU kernels.
HOT_TESTS := $(addprefix unit/test_,batch_invariant gpu_exec gpu_ll128 net reduce) $(addprefix integration/test_,gpu_vcoll rma_card vcoll)
$(HOT_TESTS:%=$(BUILD)/tests/%.o): FOLDER_CFLAGS = $(HOT_TEST_CFLAGS)
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(HK_CFLAGS) $(CFLAGS) $(FOLDER_CFLAGS) $(CFLAGS_$(lastword $(subst _, ,$*))) -c $< -o $@ $(KEEP_WARNINGS)

build/cuda/flags: FORCE
	@mkdir -p $(@D); echo '$(NVCC) $(GPU_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(GPU_FLAGS)' > $@
$(FATBIN): build/cuda/flags $(wildcard src/kernels/cuda/*) $(wildcard src/program/*.h)
	@mkdir -p $(@D)
	$(call say,NVCC,$@)$(NVCC) -fatbin --threads 2 -Xfatbin -compress-all $(GPU_FLAGS) -o $@ src/kernels/cuda/exec.cu
	@echo "  GPU kernels: $$(wc -c < $@) bytes"

# One architecture's PTX, which the interpreter in the emulated driver runs (CUDAEMU_PTX, tests/ptxemu/), and the machine code that is made
# of it, which the suites gpu_compile and sass read; what ptxas says of that is beside it.
ONE_NVCC = $(or $(NVCC),$(NVCC_HERE))
# Registers are ptxas' business: nvcc 13.0 gives the limit to a ptxas without a machine, which finds it too big.
PTX_FLAGS := $(filter-out -maxrregcount=%,$(GPU_CXXFLAGS))
build/cuda/%/kernels.ptx: $(wildcard src/kernels/cuda/*) $(wildcard src/program/*.h)
	@mkdir -p $(@D)
	$(call say,NVCC,$@)$(ONE_NVCC) -ptx $(PTX_FLAGS) -Werror all-warnings -arch=compute_$* -o $@ src/kernels/cuda/exec.cu
build/cuda/%/test_kernels.ptx: $(wildcard tests/cudaemu/test_kernels.*) src/kernels/cuda/primitives.h
	@mkdir -p $(@D)
	$(call say,NVCC,$@)$(ONE_NVCC) -ptx $(PTX_FLAGS) -arch=compute_$* -o $@ $<
build/cuda/sm_%.cubin: build/cuda/%/kernels.ptx
	$(call say,NVCC,$@)$(ONE_NVCC) -cubin $(GPU_CXXFLAGS) -Werror all-warnings -Xptxas -v -arch=sm_$* -o $@ $< 2> $@.log || \
	  { cat $@.log; rm -f $@; exit 1; }

# A library of NCCL in the same process must not take the package's calls of its own functions.
LDFLAGS_libhocket := -Wl,-Bsymbolic -Wl,--strip-debug
# -z nodelete: service threads and fork handlers run our code even after a dlclose.
# -z defs: a symbol that no object defines is an error now, not at load time (sanitizer run times define some later).
# Debug information is packed: with the kernels of all architectures the library would have 12 MB, half of it such.
LDFLAGS_libnccl.so := $(if $(SAN),,-Wl$(comma)--compress-debug-sections=zlib)
$(SO) $(PYTHON_SO): $(LIB_OBJ) $(BUILD)/files src/libnccl.map
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -shared -Wl,-soname,$(@F) $(LDFLAGS_$(basename $(@F))) -Wl,-z,nodelete -Wl,--version-script=src/libnccl.map -Wl,--as-needed \
	  $(if $(SAN),,-Wl$(comma)-z$(comma)defs) -o $@ $(LIB_OBJ) $(HK_LDFLAGS) $(LDFLAGS) -lm
	$(if $(filter $(SO),$@),@ln -sf libnccl.so.2 $(@D)/libnccl.so)

$(LIBA): $(LIB_OBJ) $(BUILD)/files
	@rm -f $@
	$(call say,AR,$@)ar rcs $@ $(LIB_OBJ)

# Processes meet by a copy of the library's bootstrap, because what is measured may be another library.
$(BUILD)/bin/hocket-perf: $(PERF_OBJ) $(SO) $(LIBA)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(filter %.o,$^) $(LDFLAGS) $(LINK_SO) $(LIBA)
$(PERF_NAMES:%=$(BUILD)/bin/%): $(BUILD)/bin/hocket-perf
	@ln -sfn hocket-perf $@

$(PYTHON)/hocket/bin/hocket-perf: $(PERF_OBJ) $(PYTHON_SO) $(LIBA)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(filter %.o,$^) $(LDFLAGS) -L$(PYTHON)/hocket/lib -lhocket -Wl,--strip-debug \
	  -Wl,-rpath,'$$ORIGIN/../lib' $(HK_LDFLAGS) -lm $(LIBA)

# It has the library inside: it must run where none is installed, and looks at its internals.
$(BUILD)/bin/hocket: $(TOOL_OBJ) $(LIBA) $(BUILD)/files
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(TOOL_OBJ) $(LIBA) $(HK_LDFLAGS) $(LDFLAGS) -lm

$(PYTHON)/hocket/bin/hocket: $(BUILD)/bin/hocket
	@mkdir -p $(@D)
	@strip --strip-debug -o $@ $<
$(PYTHON)/hocket/%: python/hocket/%
	@mkdir -p $(@D)
	@cp $< $@
$(PYTHON)/hocket/include/%.h: include/%.h
	@mkdir -p $(@D)
	@cp $< $@
# What the sources say elsewhere: the version.
$(PYTHON)/hocket/_generated.py: include/hocket.h Makefile
	@mkdir -p $(@D)
	@{ echo '# SPDX-License-Identifier: Apache-2.0'; echo '"""Made by the Makefile."""'; \
	  sed -n 's/^#define HOCKET_\(MAJOR\|MINOR\|PATCH\) //p' $< | paste -sd . | sed 's/.*/VERSION = "&"/'; } > $@

$(BUILD)/libsupport.a: $(SUPPORT_OBJ) $(BUILD)/files
	@rm -f $@
	$(call say,AR,$@)ar rcs $@ $(SUPPORT_OBJ)

$(BUILD)/tests/test_tune: $(TUNE_OBJ)

# By its source and not by any object of that name: a build folder may have objects of sources that were moved.
# lld links a test in half of the time of the default linker.
TEST_LINKER := $(if $(shell command -v ld.lld),-fuse-ld=lld)
LINK_TEST = $(call say,LINK,$@)$(CC) $(TEST_LINKER) -Wl,--wrap=_mark_point -o $@ $(filter %.o,$^) $(BUILD)/libsupport.a $(LIBA) $(HK_LDFLAGS) $(LDFLAGS) $(CHECK_LIBS) -lm
$(patsubst tests/unit/%.c,$(BUILD)/tests/%,$(filter tests/unit/%,$(UNIT_SRC))): $(BUILD)/tests/%: $(BUILD)/tests/unit/%.o $(BUILD)/libsupport.a $(LIBA)
	@mkdir -p $(@D)
	$(LINK_TEST)
$(patsubst tests/integration/%.c,$(BUILD)/tests/%,$(filter tests/integration/%,$(UNIT_SRC))): $(BUILD)/tests/%: $(BUILD)/tests/integration/%.o $(BUILD)/libsupport.a $(LIBA)
	@mkdir -p $(@D)
	$(LINK_TEST)

# Libraries that tests load in place of drivers.
$(BUILD)/fakes/libibverbs.so.1: $(BUILD)/tests/fakes/verbs_requests.o
$(BUILD)/fakes/%.so.1: $(BUILD)/tests/fakes/%.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -shared -Wl,-soname,$(@F) -o $@ $^ $(HK_LDFLAGS) $(LDFLAGS)

# TSan must not look at fibers and at kernels' own synchronisation: what it knows of the driver are its locks.
$(EMU_OBJ): override CFLAGS += $(if $(findstring thread,$(SAN)),-fno-sanitize=thread)
$(BUILD)/cudaemu/libcuda.so.1: $(EMU_OBJ)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -shared -Wl,-soname,libcuda.so.1 -o $@ $^ $(HK_LDFLAGS) $(LDFLAGS) -ldl -lm
EMU_CXXFLAGS = -x c++ -std=c++17 -fno-exceptions -fno-rtti -DHK_CUDAEMU -D_GNU_SOURCE -Itests/cudaemu -fPIC -shared \
               -fvisibility=hidden -ffp-contract=off -Wall -MMD -MP -MF $(@:.so=.d) \
               $(if $(findstring thread,$(SAN)),,$(SAN_CFLAGS))
$(BUILD)/cudaemu/kernels.so: $(wildcard src/kernels/cuda/*.cu) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(EMU_CXXFLAGS) $(CFLAGS) -o $@ $(filter %.cu,$^) $(LDFLAGS) $(KEEP_WARNINGS)
$(BUILD)/cudaemu/test_kernels.so: tests/cudaemu/test_kernels.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$@)$(CC) $(EMU_CXXFLAGS) $(CFLAGS) -o $@ $< $(LDFLAGS) $(KEEP_WARNINGS)

# Programs that suites run: they see the public API only, as users do.
$(BUILD)/plugins/lib%.so: tests/plugins/%.c $(wildcard tests/plugins/*.h) $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) $(HK_CFLAGS) $(CFLAGS) -shared -MF $(@:.so=.d) -o $@ $< $(LDFLAGS) $(KEEP_WARNINGS)

$(BUILD)/helpers/%: $(BUILD)/tests/helpers/%.o $(SO)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $< $(LDFLAGS) $(LINK_SO)

# A rank of the fault matrix, and the library that takes its memory away.
$(BUILD)/faults/rank: $(FAULT_OBJ) $(SO)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -rdynamic -o $@ $(FAULT_OBJ) $(LDFLAGS) $(LINK_SO) -ldl
$(BUILD)/faults/libfail.so: $(BUILD)/tests/faults/fail.o
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -shared -o $@ $< $(HK_LDFLAGS) $(LDFLAGS) -ldl

$(BUILD)/roce/%: $(BUILD)/tests/roce/%.o $(LIBA)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(filter %.o,$^) $(LIBA) $(HK_LDFLAGS) $(LDFLAGS) -lm

$(BUILD)/examples/%: $(BUILD)/examples/%.o $(SO)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $< $(LDFLAGS) $(LINK_SO)

# The parameter table in words.
$(BUILD)/params-doc: scripts/params-doc.c src/base/params.def $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) -std=c11 $(WARN) -o $@ $< $(KEEP_WARNINGS)
$(BUILD)/man/man7/hocket-parameters.7: $(BUILD)/params-doc
	@mkdir -p $(@D)
	$(call say,GEN,$@)$< man > $@
$(BUILD)/man/man1/hocket-perf.1: $(BUILD)/bin/all_reduce_perf scripts/perf-man.sh
	@mkdir -p $(@D)
	$(call say,GEN,$@)scripts/perf-man.sh $< > $@
$(BUILD)/man/man1/hocket.1: $(BUILD)/bin/hocket
	@mkdir -p $(@D)
	$(call say,GEN,$@)$< help --man > $@
$(TOOL_NAMES:%=$(BUILD)/man/man1/hocket-%.1): $(BUILD)/man/man1/hocket-%.1: $(BUILD)/bin/hocket
	@mkdir -p $(@D)
	$(call say,GEN,$@)$< help --man $* > $@
$(BUILD)/man/man1/%_perf.1:
	@mkdir -p $(@D); echo '.so man1/hocket-perf.1' > $@
docs: $(BUILD)/params-doc tool ## regenerate docs/parameters.md, and what `hocket` prints in the pages
	$< markdown > docs/parameters.md
	scripts/transcripts.sh $(BUILD) README.md docs/*.md

deps: ## install with apt what building, testing and measuring need
	@scripts/deps.sh check bench

demo: ## install what is missing, build, run an allreduce on the GPUs, if there are any, else between two processes
	@scripts/deps.sh build
	@$(MAKE) $(CORES) --no-print-directory lib perf tool man kernels-note
	@scripts/demo.sh $(BUILD) "$(NVCC)"

check: ## install what is missing, build, run the tests; ONLY=pattern for some, QUICK=1 without sanitizers and clang, LONG=1 for all
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory check-build
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" ONLY="$(ONLY)" QUICK="$(QUICK)" LONG="$(LONG)" scripts/check.sh

mutations: ## break the code in random places: does a unit test notice?  SEED=, MINUTES=30, FILES=pattern (src/kernels/cuda: the GPU's)
	@scripts/deps.sh check
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" scripts/mutations.sh

gpu-mutations: ## make mutations FILES=src/kernels/cuda
	@$(MAKE) --no-print-directory mutations FILES=src/kernels/cuda

gpu-modes: ## the tests of GPUs on the emulated driver, in each of its modes; about 15 minutes
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory tests
	@HK_BUILD=$(BUILD) tests/gpu/modes.sh

sass: ## counts what matters in the machine code of the GPU kernels, for sm_80, 90 and 100, and writes it into docs/results/sass.md
	@scripts/nvdisasm.sh get >/dev/null
	@for suite in gpu_compile sass; do \
	  PAGE=docs/results/sass.md ARCHS="80 90 100" HK_MAKE=$(MAKE) tests/suites/$$suite.sh || [ $$? = 77 ] || exit 1; done

gpu-ptx: ## the GPU tests with the kernels as nvcc makes them, run by the interpreter in the emulated driver, whole and broken; MORE=1: all mutations; PART=TEXT: a part
	@$(MAKE) $(CORES) --no-print-directory check-build
	@PTX=all HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" tests/suites/gpu_ptx.sh || [ $$? = 77 ]

# A card of the user's own, or GPU_ARCHS="80 90".
PACK_ARCHS := $(if $(filter file undefined,$(origin GPU_ARCHS)),90,$(GPU_ARCHS))
gpu-pack: ## what a machine with a GPU and no compiler needs to run tests/gpu/session.sh, in build/gpu; GPU_ARCHS=90
	@$(MAKE) $(CORES) --no-print-directory BUILD=build/gpu NVCC="$(or $(NVCC),$(NVCC_HERE),$(error gpu-pack: no nvcc: $(NVCC_HINT)))" \
	  GPU_ARCHS="$(PACK_ARCHS)" lib perf tool
	@scripts/gpu-pack.sh build/gpu

gpu-check: ## is everything right on the GPU at hand?  At most seven minutes; results in build/gpu/ (OUT=)
	@HK_MAKE="$(MAKE)" tests/gpu/build.sh && tests/gpu/session.sh || [ $$? = 77 ]

gpu-bench: ## how fast is the GPU at hand, with OTHER=/path/to/libnccl.so.2 beside Hocket?  Under ten minutes
	@HK_MAKE="$(MAKE)" tests/gpu/build.sh && tests/gpu/bench.sh || [ $$? = 77 ]

figures: lib ## how large and how entangled the code is, beside well-kept libraries of the field
	@HK_BUILD=$(BUILD) scripts/figures.sh

check-san: ## the unit tests under ASan and UBSan
	@scripts/deps.sh check
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" ONLY="$(or $(ONLY),asan:)" scripts/check.sh

check-tsan: ## the unit tests under TSan
	@scripts/deps.sh check
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" ONLY="$(or $(ONLY),tsan:)" scripts/check.sh

check-roce: ## RDMA between two soft-RoCE devices in a QEMU guest: collectives, settings, faults (x86_64)
	@scripts/deps.sh build roce
	@$(MAKE) $(CORES) --no-print-directory lib perf tool $(ROCE_BIN) $(HELPER_BIN) $(EMU_SO)
	@HK_BUILD=$(BUILD) tests/roce/check.sh

check-slurm: ## the perf binaries and an example under a real Slurm with two nodes on this machine (root)
	@scripts/deps.sh build slurm
	@$(MAKE) $(CORES) --no-print-directory lib perf examples
	@HK_BUILD=$(BUILD) tests/slurm/check.sh || [ $$? = 77 ]

check-faults: ## every fault in every operation on every transport, about 15 minutes; writes the tables in docs/faults.md
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib $(FAULT_BIN) $(HELPER_BIN)
	@FORKS=2000 HK_BUILD=$(BUILD) tests/suites/forks.sh
	@HK_BUILD=$(BUILD) tests/faults/matrix.py --write docs/faults.md

check-debian: ## README's commands on fresh Debians 13 and 12, as root and as a user, and all of their compilers (root, debootstrap); RELEASES=, USERS=, GOALS=, COMPILERS=
	@RELEASES="$(RELEASES)" USERS="$(USERS)" GOALS="$(GOALS)" COMPILERS="$(COMPILERS)" ONLY="$(ONLY)" QUICK="$(QUICK)" LONG="$(LONG)" \
	  tests/debian/check.sh || [ $$? = 77 ]

check-plugins: ## a real net plugin of NCCL's in Hocket: make check-plugins OFI=/path/to/libnccl-net.so; without OFI it says how to get one
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib perf $(EMU_SO) $(HELPER_BIN)
	@HK_BUILD=$(BUILD) tests/netplugins/check.sh "$(OFI)" || [ $$? = 77 ]

check-frameworks: ## PyTorch, CuPy, JAX, vLLM's and other clients from the package index with Hocket in NCCL's place; about 10 GB under build/
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib $(EMU_SO)
	@HK_BUILD=$(BUILD) tests/frameworks/check.sh || [ $$? = 77 ]

check-torch: ## PyTorch's torch.distributed with the backend hocket, and PyTorch's own tests of it; TORCH=2.15; 6 GB under build/
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory python
	@HK_BUILD=$(BUILD) tests/python/check_torch.sh || [ $$? = 77 ]

# The kernels need nvcc: this machine's, or the package index's. Without it (WHEEL_NVCC=) the wheel is for CPUs alone.
WHEEL_NVCC ?= $(or $(NVCC),$(NVCC_HERE),index)
wheel: ## Python wheels in build/wheel: hocket-*.whl, and hocket_nccl_cu13-*.whl, which takes NCCL's place
	@scripts/deps.sh build wheel
	@nvcc="$(WHEEL_NVCC)"; if [ "$$nvcc" = index ]; then nvcc=$$(scripts/get_nvcc.sh); fi; \
	[ -n "$$nvcc" ] || echo "without nvcc the wheel is for CPUs alone"; \
	build=$${nvcc:+build/gpu-wheel}; build=$${build:-$(BUILD)}; \
	$(MAKE) $(CORES) --no-print-directory NVCC="$${nvcc:-no}" BUILD="$$build" lib python && HK_BUILD="$$build" scripts/wheel.sh

check-allocations: ## refuses each request of memory and for a descriptor in init, split, shrink, first operations: about 10 minutes
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib $(FAULT_BIN)
	@HK_BUILD=$(BUILD) tests/faults/sweep.py --most 250 --jobs 8

FUZZ_SECONDS ?= 60
fuzz: ## every fuzz test for FUZZ_SECONDS (60) under ASan and UBSan
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory SAN=address,undefined tests
	@HK_BUILD=$(BUILD) FUZZ_SECONDS=$(FUZZ_SECONDS) ONLY="$(ONLY)" scripts/fuzz.sh

bench: ## measure Hocket and its peers side by side
	@scripts/deps.sh bench
	@$(MAKE) $(CORES) --no-print-directory lib perf
	@if [ -x bench/run.sh ]; then HK_BUILD=$(BUILD) bench/run.sh; else echo "bench/run.sh is not there yet"; exit 1; fi

$(BUILD)/bench/%: $(BUILD)/bench/%.o $(LIBA)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $< $(LIBA) $(HK_LDFLAGS) $(LDFLAGS) -lm
# Over the fake libibverbs, whose support files are those of the tests.
$(BUILD)/bench/ib_peers: $(BUILD)/bench/ib_peers.o $(BUILD)/libsupport.a $(LIBA) $(FAKE_SO)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $< $(BUILD)/libsupport.a $(LIBA) $(HK_LDFLAGS) $(LDFLAGS) $(CHECK_LIBS)
bench-peers: $(BUILD)/bench/ib_peers ## what a rank with 1024 and with 4096 peers costs over (fake) RDMA
	@for n in 1 64 1024 4096; do $< $$n || exit 1; done
bench-kernels: $(BUILD)/bench/kernels ## how fast one core copies and reduces
	$<

# Under sudo it installs what its user has built: root's environment may lack their compilers.
INSTALL := PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" DESTDIR="$(DESTDIR)" HK_BUILD=$(BUILD) scripts/install.sh
install: ## into PREFIX (/opt/hocket), below DESTDIR; says what it takes the place of
	@$(INSTALL) may install
	@[ -n "$(SUDO_USER)" ] || $(MAKE) $(CORES) --no-print-directory lib perf tool man
	@$(INSTALL) install "$(PERF_BIN) $(TOOL)" "$(MAN) $(MAN_SRC)"
uninstall: ## removes from PREFIX what install has written
	@$(INSTALL) uninstall

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | while IFS=$$'\t' read -r target text; do \
	  printf '  make %-13s %s\n' "$$target" "$$text"; done
	@echo "  Options: CC=clang, SAN=address,undefined or SAN=thread, CFLAGS=..., NVCC=yes|no|/path/to/nvcc (GPU kernels), V=1 (show commands), PREFIX=, DESTDIR="

-include $(ALL_OBJ:.o=.d) $(wildcard $(BUILD)/cudaemu/*.d)
