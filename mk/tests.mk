# SPDX-License-Identifier: Apache-2.0
# Tests: what they are built from, and the targets that run them.
.PHONY: test-parts test-libraries tests check-san check-tsan check-roce check-slurm check-faults check-debian check-plugins \
        check-frameworks check-torch check-allocations fuzz mutations gpu-mutations gpu-modes

UNIT_SRC := $(wildcard tests/unit/test_*.c tests/integration/test_*.c)
SUPPORT_SRC := $(wildcard tests/support/*.c)
SUPPORT_OBJ = $(SUPPORT_SRC:%.c=$(BUILD)/%.o)
HELPER_SRC := $(wildcard tests/helpers/*.c)
FAKE_SRC := $(wildcard tests/fakes/*.c)

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

CHECK_LIBS = $(or $(shell pkg-config --libs check 2>/dev/null),-lcheck -lsubunit -lrt -lm)

# What tests are linked from, and what they load.
INPUT_OBJ := $(patsubst %,$(BUILD)/src/tools/%.o,inputs inputs_rings)
test-parts: $(UNIT_SRC:%.c=$(BUILD)/%.o) $(BUILD)/src/tools/tune/fit.o $(INPUT_OBJ) $(BUILD)/libsupport.a $(LIBA) $(HELPER_BIN) test-libraries
	@:
test-libraries: $(PLUGIN_SO) $(FAKE_SO) $(EMU_SO)
	@:
tests: test-parts $(UNIT_BIN) $(FAULT_BIN) $(ROCE_BIN) ## unit tests and the suites' helper programs, without running them
	@:

$(foreach d,unit integration fakes,$(eval $(BUILD)/tests/$d/%.o: FOLDER_CFLAGS = $(TEST_CFLAGS) $(COLD_CFLAGS)))
# Their sources say `check: fast`: they compute or compare much, or contain GPU kernels.
HOT_TESTS := $(patsubst tests/%.c,%,$(shell grep -lE '^(/\*| \*) check:.* fast' $(UNIT_SRC)))
$(HOT_TESTS:%=$(BUILD)/tests/%.o): FOLDER_CFLAGS = $(HOT_TEST_CFLAGS)

$(BUILD)/libsupport.a: $(SUPPORT_OBJ) $(BUILD)/files
	@rm -f $@
	$(call say,AR,$@)ar rcs $@ $(SUPPORT_OBJ)

$(BUILD)/tests/test_tune: $(BUILD)/src/tools/tune/fit.o
$(BUILD)/tests/test_gpu_planned: $(INPUT_OBJ)

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

mutations: # break the code in random places: does a unit test notice?  SEED=, MINUTES=30, FILES=pattern (src/kernels/cuda: the GPU's)
	@scripts/deps.sh check
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" scripts/mutations.sh

gpu-mutations: # make mutations FILES=src/kernels/cuda
	@$(MAKE) --no-print-directory mutations FILES=src/kernels/cuda

gpu-modes: ## the tests of GPUs on the emulated driver, in each of its modes; about 15 minutes
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory tests
	@HK_BUILD=$(BUILD) tests/gpu/modes.sh

check-san: ## the unit tests under ASan and UBSan
	@scripts/deps.sh check
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" ONLY="$(or $(ONLY),asan:)" scripts/check.sh

check-tsan: ## the unit tests under TSan
	@scripts/deps.sh check
	@HK_BUILD=$(BUILD) HK_MAKE="$(MAKE)" ONLY="$(or $(ONLY),tsan:)" scripts/check.sh

check-roce: ## RDMA between two soft-RoCE devices in a QEMU guest: collectives, settings, faults (x86_64)
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib perf tool $(ROCE_BIN) $(HELPER_BIN) $(EMU_SO) $(BUILD)/tests/test_tls
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

check-plugins: ## real plugins of NCCL's in Hocket: NVIDIA's Inspector (INSPECTOR=sources), a net plugin (OFI=/path/to/libnccl-net.so; without OFI it says how to get one)
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib perf $(EMU_SO) $(HELPER_BIN)
	@HK_BUILD=$(BUILD) tests/netplugins/inspector.sh "$(INSPECTOR)" || [ $$? = 77 ]
	@HK_BUILD=$(BUILD) tests/netplugins/check.sh "$(OFI)" || [ $$? = 77 ]

check-frameworks: ## PyTorch, CuPy, JAX, vLLM's and other clients from the package index with Hocket in NCCL's place; about 10 GB under build/
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib $(EMU_SO)
	@HK_BUILD=$(BUILD) tests/frameworks/check.sh || [ $$? = 77 ]

check-torch: ## PyTorch's torch.distributed with the backend hocket, and PyTorch's own tests of it; TORCH=2.15; 6 GB under build/
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory python
	@HK_BUILD=$(BUILD) tests/python/check_torch.sh || [ $$? = 77 ]

check-allocations: ## refuses each request of memory and for a descriptor in init, split, shrink, first operations: about 10 minutes
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory lib $(FAULT_BIN)
	@HK_BUILD=$(BUILD) tests/faults/sweep.py --most 250 --jobs 8

FUZZ_SECONDS ?= 60
fuzz: ## every fuzz test for FUZZ_SECONDS (60) under ASan and UBSan
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory SAN=address,undefined tests
	@HK_BUILD=$(BUILD) FUZZ_SECONDS=$(FUZZ_SECONDS) ONLY="$(ONLY)" scripts/fuzz.sh
