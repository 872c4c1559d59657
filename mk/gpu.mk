# SPDX-License-Identifier: Apache-2.0
# GPU kernels: with which nvcc, for which GPUs; and the targets for machines with a GPU.
.PHONY: sass gpu-ptx gpu-pack gpu-check gpu-bench

# The GPU kernels.  All of them take nvcc some minutes, and who has no GPU does not want to wait for them.  So NVCC unset means: for
# the GPUs of this machine, if there are any and nvcc is found.  NVCC=yes (or a path) means for every architecture, NVCC=no none.
# One file for all compilers and sanitizers.  PTX of the newest is for those to come, that of the oldest for all between.
GPUS_HERE ?= $(wildcard /proc/driver/nvidia/gpus/*)
NVCC_HERE := $(firstword $(wildcard $(CUDA_HOME:%=%/bin/nvcc)) $(shell command -v nvcc) $(wildcard $(addsuffix /bin/nvcc,$(CUDA_PATH) /usr/local/cuda)))
NVCC_HINT := it is in NVIDIA's CUDA toolkit, and in the Python package nvidia-cuda-nvcc; then NVCC=/path/to/nvcc
CARD_ARCHS = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | tr -dc '0-9\n' | sort -nu)
EVERY_ARCH := 75 80 86 89 90 100 103 120
# What a recipe for NCCL says (mk/nccl.mk): it wants kernels, and NVCC_GENCODE has the architectures in nvcc's words. Some give these to
# src.lib and not to the `make install` that follows: what the build was made with is in recipe.mk.
NCCL_RECIPE := $(filter src.%,$(MAKECMDGOALS))$(NVCC_GENCODE)$(if $(filter command,$(origin CUDA_HOME)),$(CUDA_HOME))
ifeq ($(origin NVCC)$(NCCL_RECIPE),undefined)
-include $(BUILD)/recipe.mk
endif
ifneq ($(NVCC_GENCODE),)
GPU_ARCHS := $(sort $(shell echo '$(NVCC_GENCODE)' | grep -o 'sm_[0-9]*' | tr -dc '0-9\n'))
endif
ifeq ($(origin NVCC),undefined)
NVCC := $(or $(RECIPE_NVCC),$(if $(GPUS_HERE)$(NCCL_RECIPE),$(NVCC_HERE)))
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
GPU_FLAGS := $(GPU_CXXFLAGS) $(or $(NVCC_GENCODE),$(foreach a,$(GPU_ARCHS),-gencode arch=compute_$a,code=sm_$a) \
             $(foreach a,$(PTX_ARCHS),-gencode arch=compute_$a,code=compute_$a))
ifneq ($(NVCC),)
CFLAGS_image := -DHK_GPU_FATBIN='"$(FATBIN)"' -DHK_GPU_ARCHS='"$(GPU_ARCHS)"' \
                -DHK_GPU_NVCC='"$(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')"'
$(BUILD)/src/kernels/gpu_image.o: $(FATBIN)
endif

build/cuda/flags: FORCE
	@mkdir -p $(@D); echo '$(NVCC) $(GPU_FLAGS)' | cmp -s - $@ || echo '$(NVCC) $(GPU_FLAGS)' > $@
$(FATBIN): build/cuda/flags $(wildcard src/kernels/cuda/*) $(wildcard src/program/*.h)
	@mkdir -p $(@D)
	$(call say,NVCC,$@)$(NVCC) -fatbin --threads 2 -Xfatbin -compress-all $(GPU_FLAGS) -o $@ src/kernels/cuda/exec.cu
	@echo "  GPU kernels: $$(wc -c < $@) bytes"

# One architecture's PTX, which the interpreter in the emulated driver runs (CUDAEMU_PTX, tests/ptxemu/), and the machine code that is made
# of it, which the suites gpu_compile and sass read; what ptxas says of that is next to it.
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

gpu-bench: ## how fast is the GPU at hand, with OTHER=/path/to/libnccl.so.2 in turns with Hocket?  Under ten minutes
	@HK_MAKE="$(MAKE)" tests/gpu/build.sh && tests/gpu/bench.sh || [ $$? = 77 ]
