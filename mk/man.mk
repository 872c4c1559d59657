# SPDX-License-Identifier: Apache-2.0
# Manual pages and generated documents.
.PHONY: man docs

# Manual pages: one for all perf binaries, with a pointer from each name (none from a sanitizer build, which may not run).
MAN := $(BUILD)/man/man7/hocket-parameters.7 $(if $(PERF_BIN),$(if $(SAN),,$(BUILD)/man/man1/hocket-perf.1 \
       $(PERF_NAMES:%=$(BUILD)/man/man1/%.1)))
MAN_SRC := $(wildcard man/*.[1-8])
# What `hocket` writes about itself: a page for each command.
TOOL_NAMES := $(shell sed -n 's/^HK_TOOL(\(.*\))/\1/p' src/tools/commands.def)
MAN += $(if $(SAN),,$(BUILD)/man/man1/hocket.1 $(TOOL_NAMES:%=$(BUILD)/man/man1/hocket-%.1) $(BUILD)/man/man1/ncclras.1)

man: $(MAN)
	@:

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
$(BUILD)/man/man1/ncclras.1:
	@mkdir -p $(@D); echo '.so man1/hocket-ras.1' > $@
$(BUILD)/man/man1/%_perf.1:
	@mkdir -p $(@D); echo '.so man1/hocket-perf.1' > $@
docs: $(BUILD)/params-doc tool ## regenerate docs/parameters.md, and what `hocket` prints in the pages
	$< markdown > docs/parameters.md
	scripts/transcripts.sh $(BUILD) README.md docs/*.md
