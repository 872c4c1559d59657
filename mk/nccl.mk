# SPDX-License-Identifier: Apache-2.0
# The targets and variables of NCCL's Makefile, so that recipes for NCCL run unchanged: src.build, src.lib, src.staticlib, src.install,
# src.clean; CUDA_HOME, NVCC_GENCODE (mk/gpu.mk), PREFIX, BUILDDIR, VERBOSE.
.PHONY: src.build src.lib src.staticlib src.install src.clean

BUILDDIR ?= build

# The library as a tree with include/ and lib/ in BUILDDIR, which programs may link before anything is installed.
src.build src.lib src.staticlib: lib kernels-note ## as NCCL's: the library in BUILDDIR (build), with CUDA_HOME= and NVCC_GENCODE=
	@PREFIX="$(abspath $(BUILDDIR))" LIBDIR="$(abspath $(BUILDDIR))/lib" INCLUDEDIR="$(abspath $(BUILDDIR))/include" DESTDIR= QUIET=1 \
	  HK_BUILD=$(BUILD) scripts/install.sh install "" ""
# A recipe gives CUDA_HOME to src.build alone: what it has made is installed as it is.
src.install: ## as NCCL's: the library into PREFIX, without programs
	@[ -e $(SO) ] && [ -e $(STATIC) ] || $(MAKE) $(CORES) --no-print-directory lib kernels-note
	@$(INSTALL) may src.install && $(INSTALL) install "" ""
src.clean: ## as NCCL's: remove what src.build has made in BUILDDIR
	@[ ! -e $(BUILDDIR)/share/doc/hocket/manifest ] || PREFIX="$(abspath $(BUILDDIR))" LIBDIR="$(abspath $(BUILDDIR))/lib" DESTDIR= \
	  HK_BUILD=$(BUILD) scripts/install.sh uninstall
	rm -rf $(BUILD)/src $(SO) $(STATIC) $(LIBA)
