# SPDX-License-Identifier: Apache-2.0
# What others install: releases and packages.
.PHONY: dist deb check-packages site check-site

dist: ## the sources of this version, its changes, check sums, recipes for conda and Spack, in build/dist; URL= of the sources
	@URL="$(URL)" scripts/dist.sh build/dist
deb: ## Debian packages in build/packages: libhocket-nccl2, libhocket-dev, hocket, python3-hocket; NVCC=yes for GPUs
	@scripts/deps.sh build deb
	@NVCC="$(if $(filter file undefined,$(origin NVCC)),no,$(or $(NVCC),no))" scripts/deb.sh
check-packages: ## recipes for NCCL, Debian packages and the Dockerfile on fresh Debians 12 and 13 (root, debootstrap), wheels, conda, Spack; RELEASES= SPACK=
	@scripts/deps.sh build
	@tests/packages/recipes.sh
	@RELEASES="$(RELEASES)" tests/debian/packages.sh || [ $$? = 77 ]
	@tests/debian/docker.sh || [ $$? = 77 ]
	@tests/packages/wheels.sh || [ $$? = 77 ]
	@tests/packages/conda.sh || [ $$? = 77 ]
	@tests/packages/spack.sh || [ $$? = 77 ]

site: ## the site in build/site/html: the pages of docs/, manual pages, the API; Sphinx from the package index
	@scripts/deps.sh build site
	@$(MAKE) $(CORES) --no-print-directory tool perf man
	@HK_BUILD=$(BUILD) scripts/site.sh
check-site: site ## every link and anchor of the site, and its pictures in wide and narrow windows (chromium), in build/site/windows
	@tests/packages/site.py build/site || [ $$? = 77 ]
