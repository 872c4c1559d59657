# SPDX-License-Identifier: Apache-2.0
# The Python package and its wheels.
.PHONY: python wheel check-clients

STRIP ?= strip

# The Python package, complete in a folder: PYTHONPATH=build/gcc/python. Its library has a name of its own, so that a process
# can have NCCL's, too; its binaries have no debug information.
PYTHON := $(BUILD)/python
PYTHON_SRC := $(wildcard python/hocket/*.py python/hocket/*/*.py) python/hocket/py.typed
PYTHON_SO := $(PYTHON)/hocket/lib/libhocket.so
PYTHON_BIN := $(PYTHON)/hocket/bin/hocket-perf $(PYTHON)/hocket/bin/hocket
PYTHON_C := $(PYTHON)/hocket/torch/_calls.abi3.so
PYTHON_ALL := $(if $(SAN),,$(PYTHON_SO) $(PYTHON_BIN) $(PYTHON_C) $(PYTHON_SRC:python/%=$(PYTHON)/%) $(PYTHON)/hocket/_generated.py \
              $(patsubst include/%,$(PYTHON)/hocket/include/%,$(wildcard include/*.h)))

python: $(PYTHON_ALL) ## the Python package, in build/gcc/python (PYTHONPATH)
	@:

$(PYTHON)/hocket/bin/hocket-perf: $(PERF_OBJ) $(PYTHON_SO) $(LIBA)
	@mkdir -p $(@D)
	$(call say,LINK,$@)$(CC) -o $@ $(filter %.o,$^) $(LDFLAGS) -L$(PYTHON)/hocket/lib -lhocket -Wl,--strip-debug \
	  -Wl,-rpath,'$$ORIGIN/../lib' $(HK_LDFLAGS) -lm $(LIBA)

# For every Python from 3.10 on, whatever the headers' version. Without them the Python code makes all calls.
# Debian keeps pyconfig.h in a folder for each machine. Another machine's wheel takes the one of this machine, because the limited API
# reads nothing from it that differs between machines of 64 bits.
$(PYTHON_C): python/hocket/torch/_calls.c $(wildcard include/*.h)
	@mkdir -p $(@D) $(BUILD)/pyconfig && ln -sfn "/usr/include/$$(cc -print-multiarch)" "$(BUILD)/pyconfig/$$($(CC) -print-multiarch)"
	@headers="-I$$(python3 -c 'import sysconfig; print(sysconfig.get_path("include"))') -I$(BUILD)/pyconfig"; \
	if echo '#include <Python.h>' | $(CC) $$headers -E -x c - >/dev/null 2>&1; then \
	  $(if $(V),set -x;,printf '  %-6s %s\n' CC $@;) $(CC) -o $@ $< $(HK_CFLAGS) -MF /dev/null $(CFLAGS) $$headers -shared $(LDFLAGS_libhocket) $(LDFLAGS); \
	else echo "  NOTE   without Python.h (Debian: python3-dev) a small call of torch.distributed takes some microseconds more"; fi

$(PYTHON)/hocket/bin/hocket: $(BUILD)/bin/hocket
	@mkdir -p $(@D)
	@$(STRIP) --strip-debug -o $@ $<
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

# The kernels need nvcc: this machine's, or the package index's. Without it (WHEEL_NVCC=) the wheel is for CPUs alone.
WHEEL_NVCC ?= $(or $(NVCC),$(NVCC_HERE),index)
# WHEEL_ARCH=aarch64 makes them for that machine with its cross compiler, for CPUs. hwloc's settings are taken from this machine: they are
# the same on all of 64 bits.
WHEEL_ARCH ?=
WHEEL_TOOL := $(WHEEL_ARCH:%=%-linux-gnu-)
ifneq ($(WHEEL_ARCH),)
wheel: WHEEL_NVCC :=
WHEEL_CROSS = CC=$(WHEEL_TOOL)gcc AR=$(WHEEL_TOOL)ar LD=$(WHEEL_TOOL)ld OBJCOPY=$(WHEEL_TOOL)objcopy STRIP=$(WHEEL_TOOL)strip \
  CFLAGS="$(CFLAGS) -idirafter /usr/include/$(shell gcc -dumpmachine)"
endif
wheel: ## Python wheels in build/wheel: hocket-*.whl, and hocket_nccl_cu13-*.whl, which takes NCCL's place; WHEEL_ARCH=aarch64
	@CC=$(if $(WHEEL_ARCH),$(WHEEL_TOOL)gcc,$(CC)) scripts/deps.sh build wheel
	@nvcc="$(WHEEL_NVCC)"; if [ "$$nvcc" = index ]; then nvcc=$$(scripts/get_nvcc.sh); fi; \
	[ -n "$$nvcc" ] || echo "without nvcc the wheel is for CPUs alone"; \
	build=$${nvcc:+build/gpu-wheel}; build=$${build:-$(if $(WHEEL_ARCH),build/$(WHEEL_TOOL)gcc,$(BUILD))}; \
	$(MAKE) $(CORES) --no-print-directory NVCC="$${nvcc:-no}" BUILD="$$build" $(WHEEL_CROSS) lib python && \
	HK_BUILD="$$build" STRIP=$(WHEEL_TOOL)strip $(WHEEL_ARCH:%=HOCKET_PLATFORM=linux_%) scripts/wheel.sh

check-clients: ## accelerate, Trainer, Lightning, DeepSpeed and Ray Train with HOCKET_TORCH_AS_GLOO=1, torchft; after make check-torch
	@scripts/deps.sh check
	@$(MAKE) $(CORES) --no-print-directory python
	@HK_BUILD=$(BUILD) tests/python/check_clients.sh || [ $$? = 77 ]
