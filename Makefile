# kvnode: build, run, test. `make help` lists the targets.
# BUILD=dir builds elsewhere; SAN=asan|tsan instruments; V=1 shows commands; all are used by the targets below.

MAKEFLAGS += --no-builtin-rules
.SUFFIXES:
.DELETE_ON_ERROR:
SHELL := /bin/bash

SAN ?=
V ?=
Q := $(if $(V),,@)
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
EXT := libzmq msgpack libevent libevent_pthreads jansson yaml-0.1 libpcre2-8 libutf8proc libsodium
EXT_CFLAGS = $(eval EXT_CFLAGS := $$(shell pkg-config --cflags $(EXT) | sed 's/-I/-isystem /g') \
    $$(shell $(PY_CONFIG) --includes | sed 's/-I/-isystem /g'))$(EXT_CFLAGS)
LIBS_base := -lm -pthread
LIBS_ipc := -lzmq -lmsgpackc -lsodium -ljansson -lyaml
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
ISA_AMX := -mamx-tile -mamx-int8

.PHONY: all serve test lint asan tsan bench clean help setup fuzz
all: $(BUILD)/kvnode $(BUILD)/kvnode-worker $(BUILD)/kvctl

define archive
$(call lib,$(1)): $(call objs,$(1))
	@mkdir -p $$(@D)
	@rm -f $$@
	$(Q)ar rcs $$@ $$^
endef
$(foreach d,$(DIRS),$(eval $(call archive,$(d))))

# kernels are built for speed; each ISA file for its own instruction set, everything else for any x86-64
$(BUILD)/obj/worker/cpu/%_avx2.o: CFLAGS += $(ISA_AVX2)
$(BUILD)/obj/worker/cpu/%_avx512.o: CFLAGS += $(ISA_AVX512)
$(BUILD)/obj/worker/cpu/%_amx.o: CFLAGS += $(ISA_AVX512) $(ISA_AMX)
$(BUILD)/obj/worker/cpu/%.o: CFLAGS += -O3

$(BUILD)/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CC  $<"
	$(Q)$(CC) $(CFLAGS) $(EXT_CFLAGS) $(WARN) -c $< -o $@
# the assembler copies this one in (.incbin), which -MMD does not see
$(BUILD)/obj/router/text/chat_template_py.o $(BUILD)/fuzz/obj/router/text/chat_template_py.o: \
    router/text/chat_template.py

$(BUILD)/kvnode: $(BUILD)/obj/router/main.o $(call libs,$(D_router))
	@echo "  LD  $@"
	$(Q)$(CC) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_router) -o $@
$(BUILD)/kvnode-worker: $(BUILD)/obj/worker/main.o $(call libs,$(D_worker))
	@echo "  LD  $@"
	$(Q)$(CC) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_worker) -o $@
$(BUILD)/kvctl: $(BUILD)/obj/ops/kvctl.o $(call libs,$(D_ops))
	@echo "  LD  $@"
	$(Q)$(CC) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_worker) -o $@

# --- unit tests: one Criterion program a test folder ------------------------------------------------
# U_<folder>: the source folders it links
U_tests/unit/config := $(COMMON)
U_tests/unit/ipc := $(D_ipc)
U_tests/unit/prefixcache := $(D_prefixcache)
U_tests/unit/router/text := router/text $(D_prefixcache)
U_tests/unit/router/http := router/http $(D_prefixcache)
U_tests/unit/router/api := router/http router/api router/text $(D_prefixcache)
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
	@echo "  CC  $<"
	$(Q)$(CC) $(CFLAGS) $(EXT_CFLAGS) $(filter-out -Wconversion -Wpedantic -Wmissing-prototypes,$(WARN)) -c $< -o $@

define unit_program
$(call test_bin,$(1)): $(patsubst %.c,$(BUILD)/obj/%.o,$(wildcard $(1)/test_*.c $(1)/support_*.c)) $(call libs,$(U_$(1)))
	@mkdir -p $$(@D)
	@echo "  LD  $$@"
	$(Q)$(CC) $(LDFLAGS) $$(filter %.o,$$^) $$(call group,$$(filter %.a,$$^)) -lcriterion $(LIBS_router) -o $$@
endef
$(foreach d,$(UNIT_DIRS),$(eval $(call unit_program,$(d))))

vpath helper_%.c $(wildcard tests/unit/*)
$(BUILD)/tests/helper_%: helper_%.c $(call libs,$(D_prefixcache))
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(CFLAGS) $(EXT_CFLAGS) $(LDFLAGS) $< $(call group,$(filter %.a,$^)) $(LIBS_worker) -o $@

# one folder alone: make run-tests/unit/config
define run_one
.PHONY: run-$(1)
run-$(1): $(call test_bin,$(1)) $(HELPERS)
	KVNODE_BUILD=$(BUILD) $(call test_bin,$(1)) --short-filename
endef
$(foreach d,$(UNIT_DIRS),$(eval $(call run_one,$(d))))

# --- fuzz targets: clang's libFuzzer over the same sources -----------------------------------------
FUZZ := $(patsubst tests/fuzz/%.c,$(BUILD)/fuzz/%,$(wildcard tests/fuzz/fuzz_*.c))
FUZZ_SECONDS ?= 10
FUZZ_FLAGS := -std=gnu11 -D_GNU_SOURCE -I. -O1 -g -fno-omit-frame-pointer \
    -fsanitize=address,undefined -fno-sanitize-recover=all -pthread -MMD -MP
FUZZ_DIRS := router/http router/api router/text $(D_prefixcache)
fuzz_objs = $(patsubst %.c,$(BUILD)/fuzz/obj/%.o,$(wildcard $(addsuffix /*.c,$(1))))
$(BUILD)/fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	@echo "  CLANG $<"
	$(Q)clang $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link $(EXT_CFLAGS) -c $< -o $@
$(BUILD)/fuzz/fuzz.a: $(call fuzz_objs,$(FUZZ_DIRS))
	@rm -f $@
	$(Q)ar rcs $@ $^
$(FUZZ): $(BUILD)/fuzz/%: tests/fuzz/%.c $(BUILD)/fuzz/fuzz.a
	@echo "  LD  $@"
	$(Q)clang $(FUZZ_FLAGS) -fsanitize=fuzzer $(EXT_CFLAGS) $< $(BUILD)/fuzz/fuzz.a $(LIBS_router) -o $@

# valid files for the fuzzers to bend: written by a program, into the folders that run_tests.py reads
FUZZ_SEEDS := $(BUILD)/fuzz/seeds/fuzz_gguf $(BUILD)/fuzz/seeds/fuzz_config
$(BUILD)/fuzz/seed_gguf: $(BUILD)/obj/tests/fuzz/seed_gguf.o \
    $(BUILD)/obj/tests/unit/config/support_gguf_writer.o $(call libs,$(COMMON))
	@mkdir -p $(@D)
	@echo "  LD  $@"
	$(Q)$(CC) $(LDFLAGS) $(filter %.o,$^) $(call group,$(filter %.a,$^)) $(LIBS_ipc) $(LIBS_base) -o $@
.PHONY: fuzz-built
fuzz-built: $(FUZZ) $(BUILD)/fuzz/seed_gguf
	@mkdir -p $(FUZZ_SEEDS)
	@$(BUILD)/fuzz/seed_gguf $(FUZZ_SEEDS)

# --- what people type -------------------------------------------------------------------------------
setup:
	@ops/setup.sh all

SERVE_FLAGS = --port $(PORT) $(if $(filter-out auto,$(WORKERS)),--workers $(WORKERS)) $(ARGS)
serve: ## build, fetch the default model, serve it (MODEL=file.gguf WORKERS=n PORT=n ARGS="--key value")
	@ops/setup.sh $(if $(filter .cache/%,$(MODEL)),model,build)
	@$(MAKE) --no-print-directory -j2 all
	@ops/serve.sh $(BUILD) $(MODEL) $(PORT) $(SERVE_FLAGS)

# sanitizer builds are many times slower: NODE_TESTS="tests/node/test_crash.py ..." runs some of them
NODE_TESTS ?= tests/node

test: setup ## every test: units, kernels, model goldens, real nodes
	@$(MAKE) --no-print-directory -j2 all tests-built
	@ops/run_tests.py --build $(BUILD) $(UNIT_BINS) tests/node

.PHONY: tests-built
tests-built: $(UNIT_BINS) $(HELPERS)

lint: ## formatting, include table, house rules, cppcheck
	@ops/setup.sh build
	clang-format --dry-run -Werror $$(git ls-files '*.c' '*.h' --cached --others --exclude-standard)
	@ops/lint.py
	cppcheck --quiet --std=c11 --enable=warning,portability --inline-suppr --error-exitcode=1 -I. \
	    --suppress=missingIncludeSystem --suppress=unknownMacro -D__x86_64__ -D_GNU_SOURCE -j2 \
	    config ipc prefixcache router worker ops

asan: setup ## all tests under AddressSanitizer and UBSan
	@$(MAKE) --no-print-directory -j2 SAN=asan all tests-built
	@ops/run_tests.py --build build/asan $(patsubst build/%,build/asan/%,$(UNIT_BINS)) $(NODE_TESTS)

tsan: setup ## node tests over router and workers built with ThreadSanitizer
	@$(MAKE) --no-print-directory -j2 SAN=tsan all
	@ops/run_tests.py --build build/tsan $(NODE_TESTS)

fuzz: ## each fuzz target for FUZZ_SECONDS (10)
	@ops/setup.sh build
	@$(MAKE) --no-print-directory -j2 fuzz-built
	@ops/run_tests.py --build $(BUILD) --fuzz $(FUZZ_SECONDS) $(FUZZ)

bench: setup ## speed of this machine: decode, prefill, time to first token
	@$(MAKE) --no-print-directory -j2 all
	@$(PYTHON) ops/bench/bench.py --build $(BUILD) --model $(MODEL)

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(firstword $(MAKEFILE_LIST)) | expand -t 10

-include $(shell find $(BUILD)/obj $(BUILD)/fuzz -name '*.d' 2>/dev/null)

clean: ## remove build/ (the model and Python environment in .cache/ stay)
	rm -rf build
