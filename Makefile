# kvnode: build, run, test. `make help` lists the targets.
# BUILD=dir builds elsewhere; SAN=asan|tsan instruments; both are used by the targets below.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash

SAN ?=
BUILD ?= build$(if $(SAN),/$(SAN))
MODEL ?= .cache/models/SmolLM2-135M-Instruct.Q4_1.gguf
WORKERS ?= auto
PORT ?= 8000
CC := gcc
PYTHON := .cache/venv/bin/python

WARN := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wstrict-prototypes \
    -Wmissing-prototypes -Wvla -Wcast-qual -Wwrite-strings -Wundef -Wformat=2 -Wswitch-enum \
    -Wimplicit-fallthrough -fno-common -Werror
# FP contraction is off so that the plain path is the same arithmetic on every machine
CFLAGS := -std=c11 -D_GNU_SOURCE -I. -O2 -g -fno-omit-frame-pointer -ffp-contract=off -pthread -MMD -MP
ifeq ($(SAN),asan)
CFLAGS += -fsanitize=address,undefined -fno-sanitize-recover=all
LDFLAGS += -fsanitize=address,undefined
endif
ifeq ($(SAN),tsan)
CFLAGS += -fsanitize=thread
LDFLAGS += -fsanitize=thread
endif

# --- libraries from Debian -----------------------------------------------------------------------
PY_CONFIG := /usr/bin/python3-config
EXT := libzmq msgpack libevent libevent_pthreads jansson libcyaml libpcre2-8 libutf8proc libsodium
EXT_CFLAGS = $(eval EXT_CFLAGS := $$(shell pkg-config --cflags $(EXT) | sed 's/-I/-isystem /g') \
    $$(shell $(PY_CONFIG) --includes | sed 's/-I/-isystem /g'))$(EXT_CFLAGS)
LIBS_base := -lm -pthread
LIBS_ipc := -lzmq -lmsgpackc -lsodium -ljansson -lcyaml
LIBS_worker := $(LIBS_ipc) $(LIBS_base)
LIBS_router := -levent -levent_pthreads -lhttp_parser -lpcre2-8 -lutf8proc $(LIBS_ipc) \
    $(shell $(PY_CONFIG) --ldflags --embed 2>/dev/null) $(LIBS_base)

# --- sources: one archive a folder ---------------------------------------------------------------
DIRS := config config/base ipc prefixcache router router/http router/api router/text \
    worker worker/backend worker/model worker/cpu ops
objs = $(patsubst %.c,$(BUILD)/obj/%.o,$(filter-out %/main.c ops/kvctl.c,$(wildcard $(1)/*.c)))
lib = $(BUILD)/lib/$(subst /,_,$(1)).a
libs = $(foreach d,$(1),$(call lib,$(d)))
group = -Wl,--start-group $(1) -Wl,--end-group

COMMON := config config/base
D_ipc := ipc $(COMMON)
D_prefixcache := prefixcache $(D_ipc)
D_worker := worker worker/backend worker/model worker/cpu $(D_prefixcache)
D_router := router router/http router/api router/text $(D_prefixcache)
D_ops := ops $(D_ipc)

ISA_AVX2 := -mavx2 -mfma -mf16c
ISA_AVX512 := -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni

.PHONY: all serve test lint asan tsan bench clean help setup fuzz unit node kernels-test
all: $(BUILD)/kvnode $(BUILD)/kvnode-worker $(BUILD)/kvctl

define archive
$(call lib,$(1)): $(call objs,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach d,$(DIRS),$(eval $(call archive,$(d))))

# kernels are built for speed; each ISA file for its own instruction set, everything else for any x86-64
$(BUILD)/obj/worker/cpu/%_avx2.o: CFLAGS += $(ISA_AVX2)
$(BUILD)/obj/worker/cpu/%_avx512.o: CFLAGS += $(ISA_AVX512)
$(BUILD)/obj/worker/cpu/%.o: CFLAGS += -O3

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(EXT_CFLAGS) $(WARN) -c $< -o $@

$(BUILD)/kvnode: $(BUILD)/obj/router/main.o $(call libs,$(D_router))
	$(CC) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_router) -o $@
$(BUILD)/kvnode-worker: $(BUILD)/obj/worker/main.o $(call libs,$(D_worker))
	$(CC) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_worker) -o $@
$(BUILD)/kvctl: $(BUILD)/obj/ops/kvctl.o $(call libs,$(D_ops))
	$(CC) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_worker) -o $@

# --- unit tests: one Criterion program a test folder ------------------------------------------------
# U_<folder>: the source folders it links
U_tests/unit/config := $(COMMON)
U_tests/unit/ipc := $(D_ipc)
U_tests/unit/prefixcache := $(D_prefixcache)
U_tests/unit/router/text := router/text $(D_prefixcache)
U_tests/unit/router/http := router/http $(D_prefixcache)
U_tests/unit/router/api := $(D_router)
U_tests/unit/router := $(D_router)
U_tests/unit/worker := $(D_worker)
U_tests/kernels := worker/cpu worker/backend worker/model $(D_prefixcache)
U_tests/model := worker/cpu worker/backend worker/model $(D_prefixcache)
UNIT_DIRS := $(foreach d,tests/unit/config tests/unit/ipc tests/unit/prefixcache tests/unit/router/text \
    tests/unit/router/http tests/unit/router/api tests/unit/router tests/unit/worker tests/kernels \
    tests/model,$(if $(wildcard $(d)/test_*.c),$(d)))
test_bin = $(BUILD)/tests/$(subst /,_,$(patsubst tests/%,%,$(1)))
UNIT_BINS := $(foreach d,$(UNIT_DIRS),$(call test_bin,$(d)))
# helper programs that multi-process tests exec: tests/unit/**/helper_*.c
HELPERS := $(patsubst %.c,$(BUILD)/tests/%,$(notdir $(wildcard tests/unit/*/helper_*.c)))

$(BUILD)/obj/tests/%.o: tests/%.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(EXT_CFLAGS) $(filter-out -Wconversion -Wpedantic -Wmissing-prototypes,$(WARN)) -c $< -o $@

define unit_program
$(call test_bin,$(1)): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)/test_*.c $(1)/support_*.c)) $(call libs,$(U_$(1)))
	@mkdir -p $$(@D)
	$(CC) $(LDFLAGS) $$(filter %.o,$$^) $$(call group,$$(filter %.a,$$^)) -lcriterion $(LIBS_router) -o $$@
endef
$(foreach d,$(UNIT_DIRS),$(eval $(call unit_program,$(d))))

vpath helper_%.c $(wildcard tests/unit/*)
$(BUILD)/tests/helper_%: helper_%.c $(call libs,$(D_prefixcache))
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(EXT_CFLAGS) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_worker) -o $@

# one folder alone: make run-tests/unit/config
run-%: $(HELPERS)
	@$(MAKE) --no-print-directory $(call test_bin,$*)
	KVNODE_BUILD=$(BUILD) $(call test_bin,$*) --short-filename

-include $(shell find $(BUILD)/obj -name '*.d' 2>/dev/null)

clean:
	rm -rf build
