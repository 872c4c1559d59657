# SPDX-License-Identifier: Apache-2.0
# Everything is built under build/<compiler>[-<sanitizers>]/, nothing next to the sources.  `make help` lists the targets.
SHELL := /bin/bash
.DEFAULT_GOAL := all
ifeq ($(origin CC),default)
CC := gcc
endif
OBJCOPY ?= objcopy
SAN ?=
PREFIX ?= /opt/hocket
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
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
# gcc warns that TSan does not model fences; ours stand next to atomics that it does model.
# clang's UBSan reports NULL + 0, which C2y allows, and needs C++'s run time in the emulated GPU's kernels; it has other
# names for gcc's macros.
SAN_CFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all \
              $(if $(findstring clang,$(CC)),-fno-sanitize=pointer-overflow$(comma)function $(if $(findstring address,$(SAN)),-D__SANITIZE_ADDRESS__) \
                $(if $(findstring thread,$(SAN)),-D__SANITIZE_THREAD__),$(if $(findstring thread,$(SAN)),-Wno-tsan)))
# The folder of the sources is no part of what is built: the same sources give the same bytes.
HK_CFLAGS := -std=c11 -ffile-prefix-map=$(CURDIR)=. -D_GNU_SOURCE -DHOCKET_NO_CUDA_HEADERS -Iinclude -fPIC -fvisibility=hidden -fno-math-errno \
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
CALL_DIRS := $(addprefix src/,api comm core failure rma run)
COLD_DIRS := src/perf src/tools examples tests/helpers tests/faults tests/roce \
             $(addprefix src/,$(filter-out program% collectives% sim% kernels%,$(LIB_DIRS)))
LIB_SRC := $(foreach d,$(LIB_DIRS),$(wildcard src/$d/*.c))
PERF_SRC := $(wildcard src/perf/*.c)
TOOL_SRC := $(wildcard src/tools/*.c src/tools/*/*.c)
EXAMPLE_SRC := $(wildcard examples/*.c)

LIB_OBJ := $(LIB_SRC:%.c=$(BUILD)/%.o)
# One program, and a link to it for each operation.
PERF_OBJ := $(PERF_SRC:%.c=$(BUILD)/%.o) $(BUILD)/src/base/json.o
PERF_NAMES := $(shell sed -n 's/^ *OPERATION.\([a-z_]*\), ".*/\1_perf/p' src/perf/operations.c)
PERF_BIN := $(BUILD)/bin/hocket-perf $(PERF_NAMES:%=$(BUILD)/bin/%)
TOOL_OBJ := $(TOOL_SRC:%.c=$(BUILD)/%.o)
TOOL := $(if $(TOOL_SRC),$(BUILD)/bin/hocket $(BUILD)/bin/ncclras)
EXAMPLE_BIN := $(EXAMPLE_SRC:examples/%.c=$(BUILD)/examples/%)

SO := $(BUILD)/lib/libnccl.so.2
STATIC := $(BUILD)/lib/libnccl_static.a
LIBA := $(BUILD)/libhocket-internal.a
# Programs find the library of their own installation, wherever LIBDIR is.
OTHER_LIBDIR := $(filter-out $(PREFIX)/lib,$(LIBDIR))
LINK_SO = -L$(BUILD)/lib -lnccl -Wl,-rpath,'$$ORIGIN/../lib$(OTHER_LIBDIR:%=:%)' $(HK_LDFLAGS) -lm
# Without a -j of the user's, the targets that build for themselves use every core.
CORES = $(if $(findstring jobserver,$(MAKEFLAGS)),,-j$(shell nproc 2>/dev/null || echo 2))

ifeq ($(V),)
say = @printf '  %-6s %s\n' $1 $2;
else
say =
endif

include mk/gpu.mk mk/man.mk mk/python.mk mk/nccl.mk mk/package.mk mk/tests.mk
ALL_OBJ := $(sort $(LIB_OBJ) $(TOOL_OBJ) $(PERF_OBJ)) $(UNIT_SRC:%.c=$(BUILD)/%.o) \
           $(EXAMPLE_SRC:%.c=$(BUILD)/%.o) $(HELPER_SRC:%.c=$(BUILD)/%.o) $(ROCE_BIN:$(BUILD)/roce/%=$(BUILD)/tests/roce/%.o) $(SUPPORT_OBJ) $(FAULT_OBJ) $(BUILD)/tests/faults/fail.o $(FAKE_SRC:%.c=$(BUILD)/%.o) $(EMU_OBJ)

.PHONY: all kernels-note objects lib perf tool examples check-build docs demo deps check figures bench bench-peers bench-kernels \
        install uninstall clean help FORCE
.SECONDARY:
.DELETE_ON_ERROR:

all: lib perf tool examples man $(if $(wildcard /usr/include/check.h),tests) kernels-note ## library, programs, examples, tests (default)
kernels-note:
	@$(if $(NCCL_RECIPE)$(RECIPE_NVCC),mkdir -p $(BUILD) && printf '%s\n' 'RECIPE_NVCC := $(NVCC)' 'NVCC_GENCODE := $(NVCC_GENCODE)' > $(BUILD)/recipe.mk,rm -f $(BUILD)/recipe.mk)
	@echo "GPU kernels: $(if $(NVCC),in the library: sm_$(subst $() ,$(comma) ,$(GPU_ARCHS)) and PTX of $(PTX_ARCHS) for others (by $(NVCC)),none$(if $(KERNELS_WHY),: $(KERNELS_WHY)))"
lib: $(SO) $(if $(SAN),,$(STATIC)) $(LIBA) ## libnccl.so.2, libnccl_static.a
	@:
perf: $(PERF_BIN) ## the *_perf binaries
	@:
tool: $(TOOL) ## the command hocket
	@:
# Also for what these run: scripts and their makes.
check check-san check-tsan check-roce check-slurm check-faults check-allocations check-plugins check-frameworks check-torch fuzz \
gpu-modes gpu-ptx: export WERROR := -Werror
objects: $(ALL_OBJ)
	@:
examples: $(EXAMPLE_BIN) ## those of examples/ that need nothing but the library
	@:
check-build: all python tests
	@:

# Objects depend on the flags in force: a change of compiler or flags rebuilds, and so do headers that are installed after
# the first build (src/topo/detect_hwloc.c).
quoted = '$(subst ','\'',$1)'
FLAGS_TEXT = $(shell $(CC) --version 2>/dev/null | head -n 1) $(CC) $(filter-out -ffile-prefix-map=%,$(HK_CFLAGS)) $(CFLAGS) $(TEST_CFLAGS) $(COLD_CFLAGS) $(HOT_CFLAGS) $(LDFLAGS)$(if $(NVCC), $(NVCC)) $(wildcard /usr/include/hwloc.h)
$(BUILD)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' $(call quoted,$(FLAGS_TEXT)) | cmp -s - $@ || \
	  printf '%s\n' $(call quoted,$(FLAGS_TEXT)) > $@

# The list of the library's and the command's files, and where programs look for the library: what changes here relinks.
$(BUILD)/files: FORCE
	@mkdir -p $(@D); echo "$(LIB_SRC) $(TOOL_SRC) $(OTHER_LIBDIR)" | cmp -s - $@ || echo "$(LIB_SRC) $(TOOL_SRC) $(OTHER_LIBDIR)" > $@

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
$(BUILD)/%.o: %.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(HK_CFLAGS) $(CFLAGS) $(FOLDER_CFLAGS) $(CFLAGS_$(lastword $(subst _, ,$*))) -c $< -o $@ $(KEEP_WARNINGS)

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

# NCCL's name. One object, so that only the API's symbols are seen from outside.
$(STATIC): $(LIB_OBJ) $(BUILD)/files
	@mkdir -p $(@D); rm -f $@
	$(call say,AR,$@)$(or $(LD),ld) -r -o $(BUILD)/nccl_static.o $(LIB_OBJ) && $(OBJCOPY) --localize-hidden --strip-debug $(BUILD)/nccl_static.o && \
	  $(AR) rcsD $@ $(BUILD)/nccl_static.o && rm -f $(BUILD)/nccl_static.o

$(LIBA): $(LIB_OBJ) $(BUILD)/files
	@rm -f $@
	$(call say,AR,$@)ar rcs $@ $(LIB_OBJ)

# Processes meet by a copy of the library's bootstrap, because what is measured may be another library.
$(BUILD)/bin/hocket-perf: $(PERF_OBJ) $(SO) $(LIBA)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(filter %.o,$^) $(LDFLAGS) $(LINK_SO) $(LIBA)
$(PERF_NAMES:%=$(BUILD)/bin/%): $(BUILD)/bin/hocket-perf
	@ln -sfn hocket-perf $@

# It has the library inside: it must run where none is installed, and looks at its internals.
$(BUILD)/bin/hocket: $(TOOL_OBJ) $(LIBA) $(BUILD)/files
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(TOOL_OBJ) $(LIBA) $(HK_LDFLAGS) $(LDFLAGS) -lm

# For tools that call NCCL's client of its RAS protocol.
$(BUILD)/bin/ncclras: $(BUILD)/bin/hocket
	@ln -sfn hocket $@

$(BUILD)/examples/%: $(BUILD)/examples/%.o $(SO)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $< $(LDFLAGS) $(LINK_SO)

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

figures: lib ## how large and how entangled the code is, compared with well-kept libraries of the field
	@HK_BUILD=$(BUILD) scripts/figures.sh

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
INSTALL = PREFIX="$(PREFIX)" LIBDIR="$(LIBDIR)" INCLUDEDIR="$(INCLUDEDIR)" DESTDIR="$(DESTDIR)" HK_BUILD=$(BUILD) scripts/install.sh
install: ## into PREFIX (/opt/hocket), below DESTDIR; says what it takes the place of
	@$(INSTALL) may install
	@[ -n "$(SUDO_USER)" ] || $(MAKE) $(CORES) --no-print-directory lib perf tool man
	@$(INSTALL) install "$(PERF_BIN) $(TOOL)" "$(MAN) $(MAN_SRC)"
uninstall: ## removes from PREFIX what install has written
	@$(INSTALL) uninstall

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z.-]*\)[a-z. ]*:.*## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r target text; do \
	  printf '  make %-17s %s\n' "$$target" "$$text"; done
	@echo "  Options: CC=clang, SAN=address,undefined or SAN=thread, CFLAGS=..., NVCC=yes|no|/path/to/nvcc (GPU kernels), V=1 (show commands), PREFIX=, DESTDIR="

-include $(ALL_OBJ:.o=.d) $(wildcard $(BUILD)/cudaemu/*.d)
