# Makefile - dflash.c, one file, not recursive. `make help` lists the targets.
#
# Layers: cmd -> common -> kernels/kernels.h. `make check-layers` (part of every build) refuses an include that goes
# the other way. Objects live in build/obj, programs in build/bin.

CC       ?= gcc
NVCC     ?= nvcc
PREFIX   ?= /usr/local
BUILD    ?= build
# CUDA=1 where there is a compiler; for `make demo` and `make test`, which run no CUDA, only where there is a device too.
CUDA     ?= $(shell command -v $(NVCC) >/dev/null 2>&1 && \
              { test -z "$(filter demo test,$(MAKECMDGOALS))" || test -e /dev/nvidia0 || nvidia-smi -L >/dev/null 2>&1; } && \
              echo 1 || echo 0)
DEBUG_SYNC ?= 0
WERROR   ?= 0
V        ?= 0
SANITIZE ?=

# One short line a command; V=1 shows the commands.
ifeq ($(V),0)
Q := @
SAY = @printf '  %-5s %s\n' 
else
Q :=
SAY = @:
endif

# All cores, unless the caller says how many jobs.
ifeq ($(filter -j%,$(MAKEFLAGS)),)
MAKEFLAGS += -j$(shell nproc 2>/dev/null || echo 1)
endif

TOOLS := convert quantize inspect tokenize prefill generate bench

# No -ffast-math, no contraction: the same bits on every machine. Fused multiply-adds are written out.
CFLAGS_BASE := -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wno-psabi \
               -ffp-contract=off -fno-math-errno -fopenmp -MMD -MP
ifeq ($(WERROR),1)
CFLAGS_BASE += -Werror
endif
comma := ,
space := $(subst ,, )
ifneq ($(SANITIZE),)
CFLAGS_BASE += -fsanitize=$(SANITIZE) -fno-sanitize-recover=all -fno-omit-frame-pointer
LDFLAGS     += -fsanitize=$(SANITIZE)
override CUDA := 0
BUILD       := build-$(subst $(comma),-,$(SANITIZE))
endif
CFLAGS_ALL = $(CFLAGS_BASE) $(CFLAGS)
LIBS := -lz -ljansson -lpcre2-8 -lutf8proc -lm

OBJ := $(BUILD)/obj
BIN := $(BUILD)/bin

COMMON_SRC  := $(wildcard common/*/*.c)
KERNEL_SRC  := $(wildcard kernels/*.c kernels/blocks/*.c kernels/cpu/*.c kernels/cuda/*/*.c) # planners of CUDA are plain C
CLI_SRC     := $(wildcard cmd/*.c)
COMMON_OBJ  := $(COMMON_SRC:%.c=$(OBJ)/%.o)
KERNEL_OBJ  := $(KERNEL_SRC:%.c=$(OBJ)/%.o)
CLI_OBJ     := $(CLI_SRC:%.c=$(OBJ)/%.o)
LIB         := $(BUILD)/libdflash.a
# An archive, so that a program that runs no model links nothing that does.
CLI_LIB     := $(BUILD)/libcmd.a

# CUDA: only these programs link it (and the tests of it), by objects that stand before the archive: backend_cuda.o is
# backend.c with KN_CUDA and takes the place of the archive's own.
CUDA_TOOLS := prefill generate bench
CUDA_HOME  := $(patsubst %/bin/nvcc,%,$(realpath $(shell command -v $(NVCC))))
CUDA_SRC   := $(wildcard kernels/cuda/*/*.cu)
CUDA_OBJ   := $(OBJ)/kernels/backend_cuda.o $(CUDA_SRC:%.cu=$(OBJ)/%.cu.o)
# cublasLt is opened when a prompt is first run (kernels/cuda/prompt/many.cu): only its header is needed here.
CUBLAS     ?= $(if $(wildcard $(CUDA_HOME)/include/cublasLt.h),1,0)
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -lcudart_static -ldl -lrt -lpthread -lstdc++ \
              $(if $(filter 1,$(CUBLAS)),-Wl$(comma)-rpath$(comma)$(CUDA_HOME)/lib64:$(CUDA_HOME)/lib)
# Machine code of these architectures, and what a newer driver compiles for devices that have none: one of them alone
# compiles in half the time.
CUDA_ARCHS ?= 80 90a
CUDA_PTX   ?= 80
NVCCFLAGS  := -O3 -std=c++17 $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a$(comma)code=sm_$a) \
              $(foreach a,$(CUDA_PTX),-gencode arch=compute_$a$(comma)code=compute_$a) \
              -Xcompiler -Wall,-Wextra $(if $(filter 1,$(WERROR)),-Werror all-warnings) \
              $(if $(filter 1,$(DEBUG_SYNC)),-DCUDA_DEBUG_SYNC) $(if $(filter 1,$(CUBLAS)),-DDFLASH_CUBLAS) $(NVCC_EXTRA)
CUDA_STAMP := $(BUILD)/.cuda-$(CUDA)

# A program is built once its directory holds sources.
PROGRAMS := $(foreach t,$(TOOLS),$(if $(wildcard cmd/$t/*.c),$(BIN)/dflash-$t))

# A program for the shell.
SCRIPTS  := $(BIN)/dflash

.PHONY: all
all: check-layers $(LIB) $(PROGRAMS) $(SCRIPTS)
	@[ "$(CUDA)" != 1 ] || [ "$(CUBLAS)" = 1 ] || echo "built without cuBLAS (no cublasLt.h): prompts run 64 rows at a time"
	@[ "$(CUDA)" = 1 ] || echo "built for the CPU only: $(if $(shell command -v $(NVCC)),CUDA=0,no $(NVCC) here)"

# Instruction sets: a file named *_avx2.c, *_avxvnni.c or *_avx512.c is built for that set and chosen at run time.
$(OBJ)/%_avx2.o: CFLAGS_ISA := -mavx2 -mfma -mf16c
$(OBJ)/%_avxvnni.o: CFLAGS_ISA := -mavx2 -mfma -mf16c -mavxvnni
$(OBJ)/%_avx512.o: CFLAGS_ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c -mprefer-vector-width=512
# The sanitizers' checks in unrolled kernels take -O3 minutes a file.
$(OBJ)/kernels/%.o: CFLAGS_OPT := $(if $(SANITIZE),-O1,-O3)
$(OBJ)/kernels/cpu/%_scalar.o: CFLAGS_ISA := $(if $(findstring undefined,$(SANITIZE)),-fno-sanitize=alignment$(comma)object-size$(comma)null$(comma)bounds)
$(OBJ)/kernels/cpu/rows_scalar.o: CFLAGS_ISA := $(if $(SANITIZE),-fno-inline)

$(OBJ)/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(CFLAGS_ALL) $(CFLAGS_OPT) $(CFLAGS_ISA) -c $< -o $@

$(OBJ)/%.cu.o: %.cu
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c $< -o $@
$(OBJ)/kernels/backend_cuda.o: kernels/backend.c
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) $(CFLAGS_ALL) -DKN_CUDA -c $< -o $@
# Changes when CUDA=0 follows CUDA=1 or the other way, so that programs are linked anew.
$(CUDA_STAMP):
	@mkdir -p $(@D)
	@rm -f $(BUILD)/.cuda-*
	@touch $@

# The commit, with a + behind it where files of it were changed; a tarball of `make dist` has it in .commit. Else empty.
COMMIT := $(shell if [ -e .git ]; then git describe --always --dirty=+ --abbrev=12 --exclude='*' 2>/dev/null; else cat .commit 2>/dev/null; fi)
COMMIT_STAMP := $(OBJ)/cmd/.commit-$(COMMIT)
$(COMMIT_STAMP):
	@mkdir -p $(@D)
	@rm -f $(OBJ)/cmd/.commit-*
	@touch $@
$(OBJ)/cmd/version.o: $(COMMIT_STAMP)
$(OBJ)/cmd/version.o: CFLAGS_ISA := -DDFLASH_COMMIT='"$(COMMIT)"'

$(LIB): $(COMMON_OBJ) $(KERNEL_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(Q)ar qcs $@ $^

$(CLI_LIB): $(CLI_OBJ)
	@rm -f $@
	$(SAY) AR $@
	$(Q)ar qcs $@ $^

.SECONDEXPANSION:
cuda_of = $(if $(filter $1,$(CUDA_TOOLS)),$(if $(filter 1,$(CUDA)),$(CUDA_OBJ)) $(CUDA_STAMP))
objects_of = $(patsubst %.c,$(OBJ)/%.o,$(wildcard cmd/$1/*.c))
$(PROGRAMS): $(BIN)/dflash-%: $$(call objects_of,$$*) $$(call cuda_of,$$*) $(CLI_LIB) $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) $(LDFLAGS) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(LIBS) $(if $(filter %.cu.o,$^),$(CUDA_LIBS))

$(SCRIPTS): $(BIN)/%: cmd/dflash/%.sh
	@mkdir -p $(@D)
	$(SAY) COPY $@
	$(Q)install -m 755 $< $@

# Where a position lies, and what a number of a cache is, these alone know (kernels/ops/kv.h, struct kn_kv).
KV_DOOR   := kernels/kv.c kernels/kv_rows.h kernels/kv_rows.c kernels/cpu/kv.h kernels/cpu/kv.inc.h kernels/cuda/attention/kv.cuh kernels/cuda/attention/kv_codes.cuh
KV_ASKERS := $(filter-out $(KV_DOOR),$(wildcard $(foreach d,kernels/cpu/rows* kernels/cpu/attention* kernels/cuda/attention/* \
             kernels/cuda/chain/[a-hj-z]* common/run/*,$d)))
# The rooms of common, floor by floor: a room includes its own headers and those of lower floors.
FLOORS := 1:base 2:file 3:describe 4:model 4:token 5:make 5:run 6:inspect

.PHONY: check-layers
check-layers:
	@bad=$$(grep -nE '^#include "(\.\./)*(cmd|common)/' kernels -r --include='*.[ch]' --include='*.cu' --include='*.cuh'; \
	        grep -nE '^#include "(\.\./)+cmd/' common -r --include='*.[ch]'; \
	        grep -nE '^#include "(\.\./)+kernels/' common cmd -r --include='*.[ch]' | grep -v 'kernels/kernels\.h"'); \
	if [ -n "$$bad" ]; then echo "includes against the layers (cmd -> common -> kernels/kernels.h):"; echo "$$bad"; exit 1; fi
	@bad=$$(grep -nE '(->|\.)cap\b|% *cap\b' $(KV_ASKERS) | grep -vE 'softcap|\.cap = kn_kv_room'; \
	        grep -nE '\btype(\.[kv])? *[!=]= *KN_(F16|BF16|F32)\b' $(KV_ASKERS)); \
	if [ -n "$$bad" ]; then echo "a cache's ring or type outside its door ($(KV_DOOR)):"; echo "$$bad"; exit 1; fi
	@bad=$$(grep -rHnoE '^#include "\.\./[a-z]+/' common | awk -F'[/:"]' -v floors='$(FLOORS)' ' \
	    BEGIN {n = split(floors, f, " "); for (i = 1; i <= n; i++) {split(f[i], p, ":"); floor[p[2]] = p[1]}} \
	    !floor[$$2] || !floor[$$(NF - 1)] || floor[$$(NF - 1)] >= floor[$$2]'; \
	    for d in common/*; do case ' $(FLOORS) ' in *:$${d#common/}' '*) ;; *) echo "$$d: a room without a floor" ;; esac; done); \
	if [ -n "$$bad" ]; then echo "includes against the floors of common ($(FLOORS)):"; echo "$$bad"; exit 1; fi

# The committed .clang-format, by Debian 12's clang-format 14 (other versions differ in places).
CLANG_FORMAT ?= clang-format
FORMATTED = $(shell git ls-files '*.c' '*.h' '*.cu' '*.cuh' '*.cc')
.PHONY: format check-format
format:
	@$(CLANG_FORMAT) -i $(FORMATTED)
check-format:
	@$(CLANG_FORMAT) --dry-run -Werror $(FORMATTED)

# Unit tests: every test/unit/ROOM/test_*.c is a cmocka program.
UNIT_SRC := $(wildcard test/unit/*/test_*.c)
UNIT_BIN := $(patsubst %.c,$(BUILD)/test/%,$(notdir $(UNIT_SRC)))
REPLAY_BIN := $(patsubst test/fuzz/fuzz_%.c,$(BUILD)/test/replay_%,$(wildcard test/fuzz/fuzz_*.c)) # see fuzz-replay
$(UNIT_BIN): $(BUILD)/test/%: $$(wildcard test/unit/*/$$*.c) $(LIB) $$(wildcard test/unit/*.h test/unit/*/*.h)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) -DTEST_DATA='"test/data"' $(LDFLAGS) $< $(LIB) -o $@ -lcmocka $(LIBS)

# test/run.sh runs suites and compares the number of their checks with test/PLAN, whose lines hold for a build with or
# without CUDA.
# Of a run of many suites as many go at a time as there are cores.
RUN := FACTS="cuda=$(CUDA)" test/run.sh
SUITE_JOBS ?= $(shell nproc 2>/dev/null || echo 1)
RUN_MANY := SUITE_JOBS=$(SUITE_JOBS) $(RUN)
UNIT_SUITES = $(foreach t,$(UNIT_BIN),"unit/$(notdir $t)=$t")
.PHONY: unit
unit: $(UNIT_BIN)
	@$(RUN_MANY) unit $(BUILD)/test/unit.log $(UNIT_SUITES)

# Benchmarks of single parts: test/bench/bench_*.c.
$(BUILD)/bench/%: test/bench/%.c $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) -O3 $(LDFLAGS) $< $(LIB) -o $@ $(LIBS)

.PHONY: bench-ops
bench-ops: $(BUILD)/bench/bench_ops
	$(BUILD)/bench/bench_ops auto 1

.PHONY: bench-mm
bench-mm: $(BUILD)/bench/bench_mm
	$(BUILD)/bench/bench_mm

# Plans in made-up worlds: docs/speed/plans.md.
.PHONY: bench-plans
bench-plans: $(BUILD)/bench/bench_plans
	$(BUILD)/bench/bench_plans

# The float64 reference (test/reference) and the trained pair in every weight type the tests use.
$(BUILD)/test/oracle: test/reference/oracle_main.c test/reference/oracle.c test/reference/oracle.h $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) -O3 $(LDFLAGS) test/reference/oracle_main.c test/reference/oracle.c $(LIB) -o $@ $(LIBS)

$(BUILD)/test/offers: test/reference/offers.c $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) $< $(LIB) -o $@ $(LIBS)

DENSE := $(BUILD)/pair
HYBRID := $(BUILD)/pair-hybrid
# Every matrix in one of these; as recipes of dflash-quantize they are mixes.
LOW := iq4_nl iq4_xs q3_k q2_k iq3_s iq3_xxs iq2_s iq2_xs iq2_xxs mxfp4
# These are read alone: random ones.
LOWEST := iq1_s iq1_m
# Of docs-quality alone: mixes.
MIXES := q3_k_m iq3_m iq3_xs iq2_m
RELATIVES := dflash2 dspark domino block
define pair_rules
$(BUILD)/$1/target-%.gguf: data/$1/target/model.safetensors $(BIN)/dflash-convert
	@mkdir -p $$(@D)
	$$(SAY) GGUF $$@
	$$(Q)$(BIN)/dflash-convert -q --force data/$1/target -o $$@ --type $$*
$(BUILD)/$1/drafter-%.gguf: data/$1/drafter/model.safetensors $(BIN)/dflash-convert
	@mkdir -p $$(@D)
	$$(SAY) GGUF $$@
	$$(Q)$(BIN)/dflash-convert -q --force data/$1/drafter -o $$@ --type $$* --target data/$1/target
$(foreach k,$(RELATIVES),$(BUILD)/$1/drafter-$k-%.gguf): $(BUILD)/$1/drafter-%.gguf $(BUILD)/test/make_relative
	$$(SAY) GGUF $(BUILD)/$1/drafter-*-$$*.gguf
	$$(Q)for k in $(RELATIVES); do $(BUILD)/test/make_relative $$$$k $$< $(BUILD)/$1/drafter-$$$$k-$$*.gguf || exit 1; done
$(foreach t,q4_0 q5_0 q4_k q5_k q6_k $(MIXES),$(BUILD)/$1/target-$t.gguf): $(BUILD)/$1/target-%.gguf: $(BUILD)/$1/target-f32.gguf $(BIN)/dflash-quantize
	$$(SAY) GGUF $$@
	$$(Q)$(BIN)/dflash-quantize -q --force $$< -o $$@ --type $$*
$(foreach t,$(LOW),$(BUILD)/$1/target-$t.gguf): $(BUILD)/$1/target-%.gguf: $(BUILD)/$1/target-f32.gguf $(BIN)/dflash-quantize
	$$(SAY) GGUF $$@
	$$(Q)$(BIN)/dflash-quantize -q --force $$< -o $$@ --type q8_0 --tensor-type '*=$$*'
$(foreach t,$(LOWEST),$(BUILD)/$1/target-$t.gguf): $(BUILD)/$1/target-%.gguf: $(BUILD)/$1/target-q8_0.gguf $(BUILD)/test/make_iq1
	$$(SAY) GGUF $$@
	$$(Q)$(BUILD)/test/make_iq1 $$* $$< $$@
$(BUILD)/$1/target-wide.gguf $(BUILD)/$1/target-outliers.gguf: $(BUILD)/$1/target-%.gguf: $(BUILD)/$1/target-bf16.gguf $(BUILD)/test/make_wide
	$$(SAY) GGUF $$@
	$$(Q)$(BUILD)/test/make_wide $$< $$@ $$(if $$(filter outliers,$$*),--outliers)
endef
$(foreach p,pair pair-hybrid,$(eval $(call pair_rules,$p)))
# The hybrid target with a block that predicts further tokens, of random weights.
MTP := $(BUILD)/pair-mtp
$(MTP)/target-%.gguf: $(HYBRID)/target-%.gguf
	@mkdir -p $(@D)
	$(Q)ln -f $< $@
$(MTP)/drafter-%.gguf: data/pair-hybrid/target/config.json $(BIN)/dflash-convert
	@mkdir -p $(@D)
	$(SAY) GGUF $@
	$(Q)$(BIN)/dflash-convert -q --force $< -o $@ --random 1 --mtp only --type $*
files_of = $(foreach t,f32 f16 bf16 q8_0 q4_k_m,$1/target-$t.gguf $1/drafter-$t.gguf) $(foreach t,q4_0 q5_0 q4_k q5_k q6_k,$1/target-$t.gguf)
DIALECTS := $(DENSE)/dialects
$(BUILD)/test/make_relative: test/make_relative.c $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) $< $(LIB) -o $@ $(LIBS)
$(BUILD)/test/make_dialects: test/make_dialects.c test/dialect_files.h $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) $< $(LIB) -o $@ $(LIBS)
$(DIALECTS)/made: $(BUILD)/test/make_dialects $(DENSE)/drafter-q4_k_m.gguf
	@mkdir -p $(@D)
	$(SAY) GGUF $(@D)
	$(Q)rm -rf $(@D)/types && $< $(DENSE)/drafter-q4_k_m.gguf $(@D) && touch $@

RELATIVE := $(foreach k,$(RELATIVES),$k-bf16 $k-q4_k_m)
# The targets with heads of 128 that compute the same: tq3_0's groups do not fit into 64.
$(BUILD)/test/make_wide $(BUILD)/test/make_iq1 $(BUILD)/test/kv_quality: $(BUILD)/test/%: test/%.c $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) $< $(LIB) -o $@ $(LIBS)
wide_of = $1/target-wide.gguf $1/target-outliers.gguf
WIDE := $(foreach p,$(DENSE) $(HYBRID),$(call wide_of,$p))
QUALITY_TEXT := data/prompts/manual-8-long.txt data/prompts/python-8-long.txt

PAIR_FILES := $(WIDE) $(DIALECTS)/made $(call files_of,$(DENSE)) $(foreach p,$(DENSE) $(HYBRID),$(RELATIVE:%=$p/drafter-%.gguf)) $(foreach t,$(LOW) $(LOWEST),$(DENSE)/target-$t.gguf) $(foreach t,bf16 q8_0 q4_k_m,$(HYBRID)/target-$t.gguf $(HYBRID)/drafter-$t.gguf $(MTP)/target-$t.gguf $(MTP)/drafter-$t.gguf)
# The types of the hybrid pair that every run tests; test-exhaustive tests all.
HYBRID_TYPES := bf16,q8_0,q4_k_m

LOSSLESS_SRC := $(wildcard test/lossless/*.c)
$(BUILD)/test/lossless: $(LOSSLESS_SRC) test/lossless/lossless.h $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) $(LDFLAGS) $(filter %.c %.a,$^) -o $@ $(LIBS)

# dflash-bench that chooses wrong blocks and pages: what test/cli/needles.sh must see fail.
WRONG := $(BUILD)/test/wrong/dflash-bench
$(WRONG): test/wrong_choices.c $(call objects_of,bench) $(CLI_LIB) $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) -Wl,--wrap=kn_sparse_keep,--wrap=kn_kv_get $(filter %.c %.o %.a,$^) -o $@ $(LIBS)

# What each type of weights costs the pairs: the tables of docs/perplexity.md, made anew.
QUALITY_TYPES := f32 f16 bf16 q8_0 q6_k q5_k q5_0 q4_k q4_k_m q4_0 iq4_nl mxfp4 iq4_xs q3_k_m iq3_m iq3_s q3_k iq3_xs iq3_xxs \
                 q2_k iq2_s iq2_m iq2_xs iq2_xxs
QUALITY_FILES := $(foreach p,$(DENSE) $(HYBRID),$(QUALITY_TYPES:%=$p/target-%.gguf))
.PHONY: docs-quality
docs-quality: all $(QUALITY_FILES)
	$(Q)sed '/^| pair/,$$d' docs/perplexity.md >$(BUILD)/quality.md
	$(Q)data/quality.sh $(BIN) $(DENSE) $(QUALITY_TYPES) >>$(BUILD)/quality.md && echo >>$(BUILD)/quality.md
	$(Q)data/quality.sh $(BIN) $(HYBRID) $(QUALITY_TYPES) >>$(BUILD)/quality.md && mv $(BUILD)/quality.md docs/perplexity.md

# Calls that fail: every program with the nth allocation, read, write ... failing (test/inject). `make test` has INJECT_POINTS
# of each kind a program; `make test-faults` those that stand for every path of calls; FAULTS=all is every single one.
FAULTS ?= paths
INJECT := $(BUILD)/test/inject.so
INJECT_POINTS ?= 3
$(INJECT): test/inject/inject.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra $(if $(filter 1,$(WERROR)),-Werror) -fPIC -shared $< -o $@ -ldl -lpthread

# A client of dflash-generate --serve, and the suite that has it talk (test/serve).
SERVE_CLIENT := $(BUILD)/test/serve_client
$(SERVE_CLIENT): test/serve/client.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O2 -g -Wall -Wextra -Wshadow $(if $(filter 1,$(WERROR)),-Werror) $< -o $@

test sanitize-suites test-gpu-build: $(SERVE_CLIENT)
test sanitize-suites: $(WRONG)

.PHONY: test-faults
test-faults: all $(INJECT) $(PAIR_FILES)
	@CUDA_VISIBLE_DEVICES= $(RUN) faults $(BUILD)/test/faults.log "inject=test/inject/sweep.sh $(BIN) $(DENSE) $(INJECT) $(FAULTS)"

# The suites of `make test`.
LOSSLESS = $(BUILD)/test/lossless
SUITES = "run=test/run_test.sh" $(UNIT_SUITES) \
         "fuzz=$(MAKE) -s --no-print-directory fuzz-replay" \
         "cli=test/cli/run.sh $(BIN) $(DENSE)" \
         "inject=test/inject/sweep.sh $(BIN) $(DENSE) $(INJECT) $(INJECT_POINTS)" \
         "serve=test/serve/serve.sh $(BIN) $(DENSE) $(SERVE_CLIENT)" \
         "clients=test/clients/clients.sh $(BIN) $(DENSE)" \
         "reference=test/reference/check_reference.sh $(BIN) $(BUILD)/test/reference" \
         "family=test/family/check_families.sh $(BIN) $(BUILD)/test/family" \
         "golden/pair=test/golden/golden.sh check $(BIN) $(DENSE)" \
         "golden/pair-hybrid=test/golden/golden.sh check $(BIN) $(HYBRID)" \
         "lossless/pair=$(LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT)" \
         "lossless/low=$(LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --types $(subst $(space),$(comma),$(LOW) $(LOWEST))" \
         "lossless/pair-hybrid=$(LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --types $(HYBRID_TYPES)" \
         "lossless/pair-mtp=$(LOSSLESS) $(MTP) $(LOSSLESS_PROMPT) --untrained --types q8_0" \
         "lossless/kv=$(LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --types wide --kv" \
         "lossless/pool=$(LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --types wide --kv --pool" \
         "kv-quality/pair=$(BUILD)/test/kv_quality $(call wide_of,$(DENSE)) $(QUALITY_TEXT)" \
         "kv-quality/pair-hybrid=$(BUILD)/test/kv_quality $(call wide_of,$(HYBRID)) $(QUALITY_TEXT)" \
         $(if $(filter 1,$(CUDA)),"layout=$(BUILD)/test/test_layout")
LOSSLESS_PROMPT := data/prompts/python-8-long.txt

# Where there is a device it is not seen: these are the CPU's.
.PHONY: test
test: all $(UNIT_BIN) $(REPLAY_BIN) $(INJECT) $(BUILD)/test/oracle $(BUILD)/test/offers $(BUILD)/test/lossless $(BUILD)/test/kv_quality $(if $(filter 1,$(CUDA)),$(BUILD)/test/test_layout) $(PAIR_FILES)
	@CUDA_VISIBLE_DEVICES= $(RUN_MANY) test $(BUILD)/test/test.log $(SUITES)

# After a change of tests: the numbers of the last run of `make test` into test/PLAN, to be looked at and committed with it.
# test-GROUP-plan: those of another group.
.PHONY: test-plan test-unit-plan test-faults-plan test-sanitize-plan test-exhaustive-plan test-gpu-plan
test-plan:
	@test/run.sh --plan test $(BUILD)/test/test.log
test-unit-plan test-faults-plan test-exhaustive-plan test-gpu-plan: test-%-plan:
	@test/run.sh --plan $* $(BUILD)/test/$*.log
test-sanitize-plan:
	@test/run.sh --plan sanitize build-address-undefined/test/sanitize.log

# On a machine with an NVIDIA GPU: every CUDA operation against the CPU's, rows bit by bit, the pair's logits and drafts, and
# the losslessness of drafted output on the device.
GPU_TESTS := test_gpu families_gpu memory_gpu test_many table_gpu chain_delta_gpu trees_gpu
$(GPU_TESTS:%=$(BUILD)/test/%): $(BUILD)/test/%: $$(wildcard test/gpu/*/$$*.c test/gpu/*/$$*_*.c) test/gpu/harness.c $(CUDA_OBJ) $(LIB) $$(wildcard test/gpu/*.h test/gpu/*/*.h test/unit/*/*.h)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -O2 $(LDFLAGS) $(filter-out %.h,$^) -o $@ $(LIBS) $(CUDA_LIBS)
$(BUILD)/test/experts_gpu $(BUILD)/test/experts_bench: $(BUILD)/test/experts_%: $$(wildcard test/gpu/*/experts_$$*.c) test/gpu/harness.c $(CUDA_OBJ) $(LIB) $$(wildcard test/gpu/*.h test/gpu/*/*.h)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -O2 $(LDFLAGS) $(filter-out %.h,$^) -o $@ $(LIBS) $(CUDA_LIBS)
# Matrix products on the GPU: `mm_gpu check` and, by its other words, times. Needs nvcc.
$(BUILD)/test/mm_gpu: $(wildcard test/gpu/*/mm_gpu*.cu) $(CUDA_OBJ) $(LIB) | test/gpu/mm_gpu.cuh test/gpu/forms.h
	@mkdir -p $(@D)
	$(SAY) NVCC $@
	$(Q)$(NVCC) $(NVCCFLAGS) -cudart static $^ -o $@ -Xcompiler -fopenmp,-Wno-missing-field-initializers $(LIBS)
# Attention by itself, timed (checks are test_gpu's).
$(BUILD)/test/attention_gpu: test/gpu/bench/attention_gpu.cu $(CUDA_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(SAY) NVCC $@
	$(Q)$(NVCC) $(NVCCFLAGS) -cudart static $^ -o $@ -Xcompiler -fopenmp,-Wno-missing-field-initializers $(LIBS)
$(BUILD)/test/chain_gpu: test/gpu/check/chain_gpu.c test/gpu/check/chain_shapes.h test/gpu/check/chain_wide.h test/gpu/forms.h test/block_scales.h $(CUDA_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -O2 $(LDFLAGS) $(filter-out %.h,$^) -o $@ $(LIBS) $(CUDA_LIBS)
# Where there is little: calls of CUDA, and allocations, that the program lets fail.
LIMITS_WRAP := $(foreach f,cudaMalloc cudaMemset cudaLaunchKernelExC calloc,-Wl$(comma)--wrap=$f)
$(BUILD)/test/limits_gpu.o: test/gpu/check/limits_gpu.cc $(wildcard kernels/cuda/*/*.cuh kernels/ops/*.h) kernels/kernels.h test/gpu/harness.h
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(NVCC) -O1 -std=c++17 -Xcompiler -Wall,-Wextra -c $< -o $@
$(BUILD)/test/limits_gpu: $(BUILD)/test/limits_gpu.o test/gpu/harness.c $(CUDA_OBJ) $(LIB)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) $(LDFLAGS) $(LIMITS_WRAP) $^ -o $@ $(LIBS) $(CUDA_LIBS)
# The layout of weights on the device, checked on the host: needs nvcc, and no GPU.
$(BUILD)/test/test_layout.o: test/gpu/check/test_layout.cc $(wildcard kernels/cuda/*/*.cuh kernels/ops/*.h) kernels/kernels.h
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(NVCC) -O1 -std=c++17 -Xcompiler -Wall,-Wextra -c $< -o $@
$(BUILD)/test/test_layout: $(BUILD)/test/test_layout.o $(CUDA_OBJ) $(LIB)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) $(LDFLAGS) $^ -o $@ $(LIBS) $(CUDA_LIBS)
$(BUILD)/test/lossless_gpu: $(LOSSLESS_SRC) test/lossless/lossless.h $(CUDA_OBJ) $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) -DLOSSLESS_CUDA $(LDFLAGS) $(filter %.c %.o %.a,$^) -o $@ $(LIBS) $(CUDA_LIBS)

# The backend's speed as a table, over models of real shapes with random weights (45 GB in $(GPU_MODELS)).
GPU_MODELS := $(BUILD)/gpu-models
.PHONY: bench-gpu
bench-gpu: all $(BUILD)/test/table_gpu $(BUILD)/test/experts_bench
	test/gpu/bench/make_models.sh $(BIN) $(GPU_MODELS)
	$(BUILD)/test/table_gpu $(GPU_MODELS)
	$(BUILD)/test/experts_bench

# Files of any mix: 8B as llama.cpp's rules mix it, as dynamic files do, and all of one type; MIXES="27b-q4_k_m 27b-dynamic
# 27b-gates-f32": others of make_models.sh. 41 GB.
MIXES ?= 8b-q4_k_m 8b-dynamic 8b-q8_0 8b-q6_k 8b-bf16
.PHONY: bench-mixes
bench-mixes: all
	test/gpu/bench/make_models.sh $(BIN) $(GPU_MODELS) $(MIXES)
	@for m in $(MIXES); do $(BIN)/dflash-bench rows -m $(GPU_MODELS)/$$m.gguf --device cuda --context 512 --rounds 7 \
		--rows 1,2,16,17,64,65,128,512 || exit; done

.PHONY: test-gpu test-gpu-build
test-gpu-build: $(BUILD)/test/mm_gpu $(BUILD)/test/attention_gpu $(BUILD)/test/table_gpu $(BUILD)/test/memory_gpu $(BUILD)/test/limits_gpu $(BUILD)/test/test_gpu $(BUILD)/test/test_many $(BUILD)/test/families_gpu $(BUILD)/test/experts_gpu $(BUILD)/test/experts_bench $(BUILD)/test/chain_gpu $(BUILD)/test/chain_delta_gpu $(BUILD)/test/trees_gpu $(BUILD)/test/lossless_gpu
test-gpu: all test-gpu-build $(PAIR_FILES)
	@FACTS="cc=$$($(BUILD)/test/mm_gpu cc)" test/run.sh gpu $(BUILD)/test/gpu.log $(GPU_SUITES)
GPU_LOSSLESS = $(BUILD)/test/lossless_gpu
GPU_SUITES = "gpu/mm=$(BUILD)/test/mm_gpu check" \
    "gpu/test_gpu=$(BUILD)/test/test_gpu $(DENSE) $(LOSSLESS_PROMPT)" \
    "gpu/plans-hybrid=$(BUILD)/test/test_gpu --plans $(HYBRID) $(LOSSLESS_PROMPT)" \
    "gpu/stuck=$(BUILD)/test/mm_gpu stuck" "gpu/many=$(BUILD)/test/test_many" "gpu/limits=$(BUILD)/test/limits_gpu" \
    "gpu/memory=$(BUILD)/test/memory_gpu $(DENSE)/target-bf16.gguf $(DENSE)/drafter-bf16.gguf" \
    "gpu/memory-dflash2=$(BUILD)/test/memory_gpu $(DENSE)/target-q4_k_m.gguf $(DENSE)/drafter-dflash2-q4_k_m.gguf" \
    "gpu/test_gpu-generic=$(BUILD)/test/test_gpu --generic $(DENSE) $(LOSSLESS_PROMPT)" \
    "gpu/families=$(BUILD)/test/families_gpu" "gpu/families-generic=$(BUILD)/test/families_gpu --generic" \
    "gpu/experts=$(BUILD)/test/experts_gpu" "gpu/experts-generic=$(BUILD)/test/experts_gpu --generic" \
    "gpu/trees=$(BUILD)/test/trees_gpu" "gpu/trees-generic=$(BUILD)/test/trees_gpu --generic" \
    "gpu/chain=$(BUILD)/test/chain_gpu" "gpu/chain-delta=$(BUILD)/test/chain_delta_gpu" \
    "gpu/lossless-pair=$(GPU_LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --device cuda" \
    "gpu/lossless-low=$(GPU_LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --device cuda --types $(subst $(space),$(comma),$(LOW) $(LOWEST))" \
    "gpu/lossless-pair-hybrid=$(GPU_LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --device cuda --types $(HYBRID_TYPES)" \
    "gpu/serve=test/serve/serve.sh $(BIN) $(DENSE) $(SERVE_CLIENT) 150 bits" \
    "gpu/plans-mtp=$(BUILD)/test/test_gpu --plans $(MTP) $(LOSSLESS_PROMPT)" \
    "gpu/lossless-pair-mtp=$(GPU_LOSSLESS) $(MTP) $(LOSSLESS_PROMPT) --untrained --device cuda --types $(HYBRID_TYPES)" \
    "gpu/lossless-kv=$(GPU_LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --device cuda --types wide --kv" \
    "gpu/lossless-kv-hybrid=$(GPU_LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --device cuda --types wide --kv" \
    "gpu/lossless-kv-host=$(GPU_LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --device cuda --kv-host" \
    "gpu/lossless-kv-host-hybrid=$(GPU_LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --device cuda --kv-host --types $(HYBRID_TYPES)" \
    "gpu/lossless-kv-host-wide=$(GPU_LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --device cuda --kv-host --types wide --kv" \
    "gpu/lossless-pool=$(GPU_LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --device cuda --pool" \
    "gpu/lossless-pool-hybrid=$(GPU_LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --device cuda --pool --types $(HYBRID_TYPES)" \
    "gpu/family=DEVICE=cuda test/family/check_families.sh $(BIN) $(BUILD)/test/family-cuda"

# What a turn of a chat costs, from a state and anew, over random weights of Qwen3-0.6B (400 MB): minutes on two cores.
# TURNS_FLAGS: more of dflash-generate's, as --device cuda.
.PHONY: bench-turns
bench-turns: all $(DENSE)/target-q8_0.gguf
	@mkdir -p $(BUILD)/bench
	@[ -e $(BUILD)/bench/0.6b.gguf ] || $(BIN)/dflash-convert data/configs/qwen3-0.6b.json --random 1 --type q4_k_m -o $(BUILD)/bench/0.6b.gguf
	$(BIN)/dflash-tokenize -m $(DENSE)/target-q8_0.gguf --force -o $(BUILD)/bench/turns.tok <$(LOSSLESS_PROMPT)
	test/bench/turns.sh $(BIN) $(BUILD)/bench/0.6b.gguf $(BUILD)/bench/turns.tok 6 $(TURNS_FLAGS)

# Golden streams anew: only where a change is meant to change the arithmetic.
.PHONY: golden
golden: all $(PAIR_FILES)
	test/golden/golden.sh make $(BIN) $(DENSE)
	test/golden/golden.sh make $(BIN) $(HYBRID)

# The whole losslessness matrix of both pairs: three hours or so on two cores, a process a core.
.PHONY: test-exhaustive
test-exhaustive: all $(BUILD)/test/lossless $(PAIR_FILES) $(call files_of,$(HYBRID))
	@$(RUN) exhaustive $(BUILD)/test/exhaustive.log "exhaustive/pair=$(LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --all --jobs $$(nproc)" \
	    "exhaustive/pair-hybrid=$(LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --all --jobs $$(nproc)" \
	    "exhaustive/kv=$(LOSSLESS) $(DENSE) $(LOSSLESS_PROMPT) --types wide --kv --all --jobs $$(nproc)" \
	    "exhaustive/kv-hybrid=$(LOSSLESS) $(HYBRID) $(LOSSLESS_PROMPT) --types wide --kv --all --jobs $$(nproc)"

# The unit and command line tests under the sanitizers, in a build directory of their own.
.PHONY: test-sanitize
test-sanitize:
	@ASAN_OPTIONS=detect_leaks=1 $(MAKE) --no-print-directory SANITIZE=address,undefined sanitize-suites

.PHONY: sanitize-suites
sanitize-suites: all $(UNIT_BIN) $(INJECT) $(PAIR_FILES)
	@$(RUN_MANY) sanitize $(BUILD)/test/sanitize.log "cli=test/cli/run.sh $(BIN) $(DENSE)" \
	    "serve=test/serve/serve.sh $(BIN) $(DENSE) $(SERVE_CLIENT) 60" \
	    "inject/few=test/inject/sweep.sh $(BIN) $(DENSE) $(INJECT) 2 $(SANITIZE_INJECT)" $(UNIT_SUITES)
# Half a second a run: one job of each kind.
SANITIZE_INJECT := convert-q4_k_m quantize inspect-pair inspect-check tokenize-spm chat prefill generate generate-state bench-report

# Fuzz targets: every test/fuzz/fuzz_NAME.c holds LLVMFuzzerTestOneInput over the library. `make fuzz` (clang) runs each for
# FUZZ_SECONDS from its corpus test/fuzz/corpus/NAME; new finds land in build-fuzz/corpus/NAME, and `make fuzz-merge` adds
# those that reach something new to the committed corpus, the smallest for each thing reached. docs/fuzz-log.md has the long
# runs (test/fuzz/long.sh). `make fuzz-replay` feeds the committed corpus to the same functions, built as everything else.
FUZZ_SECONDS ?= 60
FUZZ_CC      ?= clang
FUZZ_NAMES   := $(patsubst test/fuzz/fuzz_%.c,%,$(wildcard test/fuzz/fuzz_*.c))
FUZZ_SRC     := $(COMMON_SRC) kernels/kv.c kernels/noise.c $(addprefix kernels/blocks/,types.c half.c decode.c) # what parsers need
FUZZ_OBJ     := $(FUZZ_SRC:%.c=build-fuzz/obj/%.o)
FUZZ_FLAGS   := -std=c11 -D_GNU_SOURCE -O1 -g -w -fno-omit-frame-pointer -fsanitize=address,undefined \
                -fno-sanitize-recover=all -DTOK_CACHE=16 -DMAX_VOCAB=512
FUZZ_WRAP    := $(foreach f,read fstat lseek open close,-Wl$(comma)--wrap=$f) # test/fuzz/stream.h
FUZZ_RUN     := -timeout=10 -rss_limit_mb=2048 -print_final_stats=1
# Bytes an input at most: what one find needs, no more, for the speed.
FUZZ_LEN     := chat=512 config_json=2048 desc=4096 gguf=2048 imatrix=2048 request=512 safetensors=2048 session=16384 snapshot=1024 state=1024 tokenize=192 tokenizer_json=8192 tokens=512
fuzz_args     = -max_len=$(patsubst $1=%,%,$(firstword $(filter $1=%,$(FUZZ_LEN)) $1=4096)) $(if $(wildcard test/fuzz/$1.dict),-dict=test/fuzz/$1.dict)
build-fuzz/obj/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer-no-link -MMD -MP -c $< -o $@
build-fuzz/libdflash.a: $(FUZZ_OBJ)
	@rm -f $@
	$(Q)ar qcs $@ $^
# Not counted as coverage: mutations of JSON by its structure, for the targets that read it.
build-fuzz/json_mutate.o: test/fuzz/json_mutate.c test/fuzz/json_mutate.h
	$(SAY) CC $@
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) -c $< -o $@
build-fuzz/fuzz_config_json build-fuzz/fuzz_tokenizer_json: build-fuzz/json_mutate.o
# A session wants the engine too: the CPU's kernels, watched by the sanitizer, not counted as coverage (by $(CC): clang 14
# does not know all features that __builtin_cpu_supports is asked for).
FUZZ_KERNELS := $(KERNEL_SRC:%.c=build-fuzz/kernels/%.o)
build-fuzz/kernels/%_avx2.o: CFLAGS_ISA := -mavx2 -mfma -mf16c
build-fuzz/kernels/%_avxvnni.o: CFLAGS_ISA := -mavx2 -mfma -mf16c -mavxvnni
build-fuzz/kernels/%_avx512.o: CFLAGS_ISA := -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx2 -mfma -mf16c
build-fuzz/kernels/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $@
	$(Q)$(CC) -std=c11 -D_GNU_SOURCE -O1 -w -ffp-contract=off -fno-math-errno -fno-omit-frame-pointer -fsanitize=address $(CFLAGS_ISA) -MMD -MP -c $< -o $@
build-fuzz/fuzz_session: test/fuzz/fuzz_session.c test/fuzz/no_openmp.c test/fuzz/stream.c test/fuzz/stream.h test/unit/run/tiny_pair.h build-fuzz/libdflash.a $(FUZZ_KERNELS)
	$(SAY) LINK $@
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer $(filter %.c %.o,$^) build-fuzz/libdflash.a -o $@ $(FUZZ_WRAP) $(FUZZ_LIBS)
build-fuzz/fuzz_%: test/fuzz/fuzz_%.c test/fuzz/no_backend.c test/fuzz/stream.c test/fuzz/stream.h build-fuzz/libdflash.a
	$(SAY) LINK $@
	$(Q)$(FUZZ_CC) $(FUZZ_FLAGS) -fsanitize=fuzzer $(filter-out %.h,$^) -o $@ $(FUZZ_WRAP) $(FUZZ_LIBS)
FUZZ_LIBS    ?= $(LIBS)

.PHONY: fuzz fuzz-build fuzz-merge fuzz-clang
fuzz-clang:
	@command -v $(FUZZ_CC) >/dev/null || { echo "make fuzz needs clang with libFuzzer: apt-get install clang libclang-rt-14-dev (Debian 12; no $(FUZZ_CC) here; FUZZ_CC=clang-14 names another compiler)" >&2; exit 4; }
$(FUZZ_OBJ) $(FUZZ_NAMES:%=build-fuzz/fuzz_%): | fuzz-clang
fuzz-build: $(FUZZ_NAMES:%=build-fuzz/fuzz_%)
fuzz: $(FUZZ_NAMES:%=build-fuzz/fuzz_%)
	@set -e; $(foreach t,$(FUZZ_NAMES),mkdir -p build-fuzz/corpus/$t test/fuzz/corpus/$t; echo "== fuzz $t, $(FUZZ_SECONDS) s"; \
	    build-fuzz/fuzz_$t -max_total_time=$(FUZZ_SECONDS) $(FUZZ_RUN) $(call fuzz_args,$t) \
	        -artifact_prefix=build-fuzz/find-$t- build-fuzz/corpus/$t test/fuzz/corpus/$t;)
fuzz-merge: $(FUZZ_NAMES:%=build-fuzz/fuzz_%)
	@set -e; $(foreach t,$(FUZZ_NAMES),mkdir -p build-fuzz/corpus/$t build-fuzz/new/$t; rm -f build-fuzz/new/$t/*; \
	    build-fuzz/fuzz_$t -merge=1 -use_counters=0 $(call fuzz_args,$t) build-fuzz/new/$t build-fuzz/corpus/$t test/fuzz/corpus/$t 2>/dev/null; \
	    rm -f test/fuzz/corpus/$t/*; cp build-fuzz/new/$t/* test/fuzz/corpus/$t; \
	    echo "$t: $$(ls test/fuzz/corpus/$t | wc -l) inputs";)

$(BUILD)/test/replay_%: test/fuzz/fuzz_%.c test/fuzz/replay.c test/fuzz/stream.c test/fuzz/stream.h $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) $(LDFLAGS) $(filter-out %.h,$^) -o $@ $(FUZZ_WRAP) $(LIBS)

# The states that the corpus of the session's target begins with, anew: after a change of their layout.
.PHONY: fuzz-states
fuzz-states: $(BUILD)/test/session_seeds
	@mkdir -p test/fuzz/corpus/session
	$< test/fuzz/corpus/session
$(BUILD)/test/session_seeds: test/fuzz/session_seeds.c test/fuzz/fuzz_session.c test/fuzz/stream.c $(LIB)
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(filter-out -MMD -MP,$(CFLAGS_ALL)) $(LDFLAGS) $^ -o $@ $(FUZZ_WRAP) $(LIBS)

.PHONY: fuzz-replay
fuzz-replay: $(REPLAY_BIN)
	@bad=0; for t in $(FUZZ_NAMES); do $(BUILD)/test/replay_$$t $$t test/fuzz/corpus/$$t || bad=1; done; exit $$bad

# data/malformed: files that must be refused, and EXPECT with the message of each, written by one program.
.PHONY: malformed
malformed: $(BUILD)/test/make_malformed
	$< data/malformed
$(BUILD)/test/make_malformed: test/make_malformed.c
	@mkdir -p $(@D)
	$(SAY) LINK $@
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) $< -o $@

# Speed and error of the block codecs, one core: FILE=weights.f32 for data of your own.
.PHONY: bench-quant
bench-quant: $(BUILD)/test/bench_quant
	$< $(FILE)
$(BUILD)/test/bench_quant: test/bench/bench_quant.c $(LIB)
	@mkdir -p $(@D)
	$(Q)$(CC) $(CFLAGS_ALL) $(LDFLAGS) $< $(LIB) -o $@ $(LIBS)

# The main job on a pair in data/, step by step: PAIR=pair or PAIR=pair-hybrid.
PAIR ?= pair
.PHONY: demo
demo: all
	@data/demo.sh $(BIN) $(BUILD)/demo data/$(PAIR)

# The benchmark matrix on the pair, by classes of prompts: resumes where it stopped; the report is $(BUILD)/matrix/report.md.
# MATRIX="..." adds or changes flags of dflash-bench matrix.
BENCH_PROMPTS ?= $(foreach c,code maths prose chat edit needle,$(wildcard data/prompts/$c-*.txt))
.PHONY: bench
bench: all
	@mkdir -p $(BUILD)/matrix
	@PATH="$(abspath $(BIN)):$$PATH" dflash-bench matrix --target data/$(PAIR)/target --drafter data/$(PAIR)/drafter --out $(BUILD)/matrix \
	    $(MATRIX) $(BENCH_PROMPTS) > $(BUILD)/matrix/matrix.mk
	+@PATH="$(abspath $(BIN)):$$PATH" $(MAKE) --no-print-directory -f $(BUILD)/matrix/matrix.mk report
	@cat $(BUILD)/matrix/report.md

# Completions for bash, zsh and fish, made of what the programs' --help prints.
COMPLETIONS := $(BUILD)/completions
.PHONY: completions
completions: | all
	$(SAY) SHELL $(COMPLETIONS)
	$(Q)cmd/package/completions.sh $(BIN) $(COMPLETIONS)

# What is installed, MODE:SOURCE:PLACE below PREFIX: programs, manual pages, completions, the licence, and the pages and clients that
# these name. `make uninstall` takes away these, and folders of ours that are empty then.
DOC       := share/doc/dflash.c
NAMES     := $(notdir $(PROGRAMS) $(SCRIPTS))
INSTALLED := $(foreach p,$(PROGRAMS) $(SCRIPTS),755:$p:bin/$(notdir $p)) \
    $(foreach p,$(wildcard docs/dflash*.1),644:$p:share/man/man1/$(notdir $p)) \
    $(foreach p,$(filter-out %-log.md,$(wildcard docs/*.md docs/*/*.md docs/*/*.yml)),644:$p:$(DOC)/$p) \
    $(foreach p,$(wildcard data/clients/*.py data/clients/*.sh),755:$p:$(DOC)/$p) 644:LICENSE:$(DOC)/LICENSE \
    $(foreach n,$(NAMES),644:$(COMPLETIONS)/bash/$n:share/bash-completion/completions/$n) \
    $(foreach n,$(NAMES),644:$(COMPLETIONS)/fish/$n.fish:share/fish/vendor_completions.d/$n.fish) \
    644:$(COMPLETIONS)/zsh/_dflash:share/zsh/site-functions/_dflash
.PHONY: install uninstall
install: all completions
	$(Q)set -e; for f in $(INSTALLED); do IFS=:; set -- $$f; unset IFS; \
	    install -D -m $$1 "$$2" "$(DESTDIR)$(PREFIX)/$$3"; done
	@echo "installed $(words $(INSTALLED)) files below $(DESTDIR)$(PREFIX)"
uninstall:
	$(Q)set -e; for f in $(INSTALLED); do rm -f "$(DESTDIR)$(PREFIX)/$${f##*:}"; done; \
	    ! [ -d "$(DESTDIR)$(PREFIX)/$(DOC)" ] || find "$(DESTDIR)$(PREFIX)/$(DOC)" -depth -type d -empty -delete

# A tarball of the commit, which builds and tests as a clone does; .commit in it is what --version says.
VERSION := $(shell sed -n 's/^\#define DFLASH_VERSION "\(.*\)"/\1/p' cmd/cli.h)
DIST    := dflash.c-$(VERSION)
.PHONY: dist
dist:
	@[ -e .git ] || { echo "make dist needs a clone (this is a tarball)" >&2; exit 2; }
	@[ -z "$$(git status --porcelain)" ] || echo "make dist: the tarball is of the commit: changes of this tree are not in it" >&2
	@mkdir -p $(BUILD)
	$(SAY) DIST $(BUILD)/$(DIST).tar.gz
	$(Q)git archive --prefix=$(DIST)/ --add-virtual-file=$(DIST)/.commit:$$(git describe --always --abbrev=12 --exclude='*') \
	    --format=tar.gz -o $(BUILD)/$(DIST).tar.gz.tmp HEAD && mv $(BUILD)/$(DIST).tar.gz.tmp $(BUILD)/$(DIST).tar.gz

# A Debian package of what is installed, for machines as this one: it depends on the packages that its libraries come from here.
.PHONY: deb
deb: all completions
	$(Q)cmd/package/deb.sh $(BUILD) $(VERSION)$(if $(COMMIT),+$(subst +,.changed,$(COMMIT))) $(MAKE)

# Tests of what is handed on: the tarball, unpacked, builds a program that works; the package installs, runs and goes.
.PHONY: test-package
test-package: all
	@$(RUN) package $(BUILD)/test/package.log "package=test/package/package.sh $(BUILD)"

.PHONY: help
help:
	@echo "make                 the programs, in $(BIN)"
	@echo "make demo            the main job on the pair in data/ (PAIR=pair-hybrid: on the hybrid pair)"
	@echo "make test            all tests that need no GPU;  make test-exhaustive: the whole losslessness matrix"
	@echo "make test-plan       the numbers of checks that make test made into test/PLAN, after a change of tests"
	@echo "make test-gpu        the tests of the CUDA backend, on a machine with a device"
	@echo "make test-faults     every program with an allocation, read, write, ... failing, on every path of calls"
	@echo "make test-sanitize   unit and command line tests under the address and undefined behaviour sanitizers"
	@echo "make fuzz            libFuzzer on every parser (clang)"
	@echo "make bench           the benchmark matrix;  make bench-turns: what a turn of a chat costs"
	@echo "make bench-gpu       passes, cycles and mixtures on a device; bench-mixes: files of several types"
	@echo "make install PREFIX=/usr/local; make uninstall takes the same files away;  make completions: for bash, zsh and fish"
	@echo "make deb             a Debian package;  make dist: a tarball;  make test-package: both are tried"
	@echo "CUDA_ARCHS='80 90a' CUDA_PTX=80: machine code of these, and what newer drivers compile for newer devices"
	@echo "CUDA=0|1  DEBUG_SYNC=1  WERROR=1  SANITIZE=address,undefined  V=1"

.PHONY: clean
clean:
	rm -rf build build-*

-include $(shell find $(BUILD)/obj build-fuzz/obj build-fuzz/kernels -name '*.d' 2>/dev/null)
