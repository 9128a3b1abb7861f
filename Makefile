# phasepipe: build, test, measure. `make`, `make check`, `make san`, `make tsan`, `make fuzz`, `make bench`; `make test-NAME` for one part.
# Incremental: no target begins by cleaning.

B       ?= build
CC      ?= gcc
CSTD    := -std=gnu11
WARN    := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2
OPT     ?= -O3 -g
# What gcc 12 and the linker offer against exploits of memory errors. The sanitizers replace it: fortified calls would hide errors from them.
HARDEN  ?= -D_FORTIFY_SOURCE=3 -fstack-protector-strong -fstack-clash-protection -fcf-protection=full -fPIE
HARDEN_LD ?= -pie -Wl,-z,relro,-z,now,-z,noexecstack
# -ffp-contract=off: a product and a sum are fused only where docs/arithmetic.md states it.
CFLAGS  += $(CSTD) $(WARN) $(OPT) $(HARDEN) -ffp-contract=off -fno-math-errno -D_GNU_SOURCE -Ilib -I. -pthread
LDFLAGS += -pthread $(HARDEN_LD)
LDLIBS  += -lgnutls -lnng -lmsgpackc -lutf8proc -ljansson -lsodium -lxxhash -lseccomp -lm

AREAS   := err base cli proc wire text model kv engine phase request gateway sched link http api load
LIB_SRC := $(foreach a,$(AREAS),$(wildcard lib/$(a)/*.c)) $(wildcard kernels/*.c) $(wildcard kernels/cpu/*.c)
LIB_OBJ := $(LIB_SRC:%.c=$(B)/obj/%.o)
LIB     := $(B)/libphasepipe.a

# A program is cmd/NAME.c, or the folder cmd/NAME.
PROGS   := $(patsubst cmd/%.c,%,$(wildcard cmd/*.c)) $(notdir $(patsubst %/,%,$(wildcard cmd/*/)))
BINS    := $(PROGS:%=$(B)/bin/%)

.PHONY: all
all: $(BINS)

# kernels/cpu/NAME_avx2.c and NAME_avx512.c are compiled for their instruction set; everything else for the baseline.
$(B)/obj/%_avx2.o: ARCH = -mavx2 -mfma -mf16c
$(B)/obj/%_avx512.o: ARCH = -mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni -mavx512bf16 -mprefer-vector-width=512

$(B)/obj/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(ARCH) -MMD -MP -c -o $@ $<

$(B)/obj/lib/api/openai_spec.o: lib/api/openapi.json

$(LIB): $(LIB_OBJ)
	@mkdir -p $(@D)
	@rm -f $@
	ar rcs $@ $^

# What one program alone is linked with.
LDLIBS_bench := -lcurl

define PROG
$(B)/bin/$(1): $(patsubst %.c,$(B)/obj/%.o,$(wildcard cmd/$(1).c cmd/$(1)/*.c)) $(LIB)
	@mkdir -p $$(@D)
	$$(CC) $$(CFLAGS) $$(LDFLAGS) -o $$@ $$^ $$(LDLIBS) $$(LDLIBS_$(1))
endef
$(foreach p,$(PROGS),$(eval $(call PROG,$(p))))

# tests/unit/NAME_test.c and tests/kernels/NAME_test.c are one cmocka program each.
UNIT    := $(patsubst %.c,$(B)/%,$(wildcard tests/unit/*_test.c tests/kernels/*_test.c))
$(B)/obj/tests/%.o: CFLAGS += -Itests
$(B)/tests/%_test: $(B)/obj/tests/%_test.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS) -lcmocka

# Those that compare the scheduler's counts with all that it keeps.
SCHED_CHECKED := sched_machine sched_pool worker_world sched_poison sched_tenant sched_bytes
$(SCHED_CHECKED:%=$(B)/tests/unit/%_test): $(B)/obj/tests/unit/sched_check.o

.SECONDARY: $(UNIT:$(B)/%=$(B)/obj/%.o)

.PHONY: unit
unit: $(UNIT)

-include $(LIB_OBJ:.o=.d) $(patsubst %.c,$(B)/obj/%.d,$(wildcard cmd/*.c cmd/*/*.c)) $(UNIT:$(B)/%=$(B)/obj/%.d) $(B)/obj/tests/unit/sched_check.d

# Measuring, and comparing with peers. The programs of llama.cpp are taken from the folder LLAMA_DIR or from PATH; without them
# only our side is measured.

TOOLS   := $(patsubst tests/tools/%.c,$(B)/tests/tools/%,$(filter-out tests/tools/probe.c,$(wildcard tests/tools/*.c)))
PROBE   := $(B)/tests/tools/probe

$(PROBE): tests/tools/probe.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $<

$(TOOLS): $(B)/tests/tools/%: $(B)/obj/tests/tools/%.o $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $^ $(LDLIBS)

-include $(TOOLS:$(B)/%=$(B)/obj/%.d)

.PHONY: tools bench check-peers
tools: $(TOOLS) $(PROBE)

# make bench BENCH="--only prefill,decode --rounds 5". The script builds what it needs.
bench:
	@B=$(B) scripts/bench/run $(BENCH)

check-peers: $(BINS) tools
	B=$(B) scripts/check-peers

# Tests, in tiers. `make check` is the core one; `make test-NAME` runs the suites of that name, `make test-` lists them.

# The folders whose C is formatted.
SOURCES := $(wildcard cmd/*.[ch] cmd/*/*.[ch] lib/*/*.[ch] kernels/*.[ch] kernels/cpu/*.[ch] tests/*/*.[ch])
SHELL_SOURCES := $(shell grep -lE '^\#!.*(bash|/sh)' scripts/* scripts/bench/* examples/* .ci/* 2> /dev/null)
MAN_PAGES := $(wildcard docs/man/*.[1-9])

.PHONY: check
check: all unit tools
	@B=$(B) scripts/run-tests

# Contexts of 262,144 tokens whose rows all attend to each other, and the long tests of other suites: four minutes on two
# cores.
.PHONY: check-long
check-long: all unit tools
	@PHASEPIPE_LONG=1 B=$(B) scripts/run-tests pipe/long pipe/determinism cli/bench service/gateway service/clients service/stream

.PHONY: test-
test-:
	@scripts/run-tests --list

test-%: all unit tools
	@B=$(B) scripts/run-tests $*

# Public clients against the real services; installs them into the cache folder (several GB with vLLM).
.PHONY: check-clients
check-clients: all
	@B=$(B) scripts/check-clients

# cppcheck 2.10 reports loops that always run once, and a realloc whose result is kept if it fails, as faults; the compiler
# and the sanitizers cover both.
.PHONY: lint
lint:
	@bad=$$(for f in $(SOURCES); do clang-format $$f | cmp -s - $$f || echo $$f; done); \
		[ -z "$$bad" ] || { echo "to be formatted (make format):" $$bad; exit 1; }
	@cppcheck -q --enable=warning --inline-suppr --error-exitcode=1 --std=c11 -j2 -Ilib -I. \
		--suppress=uninitvar --suppress=legacyUninitvar --suppress=arrayIndexOutOfBoundsCond --suppress=memleak \
		lib cmd kernels
	@shellcheck $(SHELL_SOURCES)
	@scripts/lint-words

.PHONY: format
format:
	clang-format -i $(SOURCES)

# A warning of mandoc is a fault; "referenced manual not found" is about pages of the machine, not ours.
.PHONY: man-lint
man-lint:
	@bad=0; for p in $(MAN_PAGES); do \
		mandoc -T lint -W warning $$p || bad=1; mandoc -T utf8 $$p > /dev/null || bad=1; done; exit $$bad

# Every fault of tests/service/faults.bats with the real processes; `make check` has the quick ones.
.PHONY: check-faults
check-faults: all unit tools
	@B=$(B) FAULTS=all scripts/run-tests worker_link worker_world service/faults

# Floods, poison requests, rogue peers, scribbling workers, pairs of kills and the like against real services (tests/attack);
# `make check` has the quick ones. Prints the peak of memory of each process beside its bound.
.PHONY: check-attack
check-attack: all unit tools
	@rm -f $(B)/peaks; rc=0; B=$(B) ATTACK=all PHASEPIPE_PEAKS=$(abspath $(B))/peaks scripts/run-tests attack > $(B)/attack.log || rc=$$?; \
		[ ! -e $(B)/peaks ] || column -t -s '	' $(B)/peaks; cat $(B)/attack.log; exit $$rc

# Under a sanitizer fmaf and -O1 make the plain C kernels slow enough to run for tens of minutes. With the machine's FMA
# instruction they compute the same bits.
build-san/obj/kernels/cpu/plain_%.o build-tsan/obj/kernels/cpu/plain_%.o: override OPT += -O2 $(if $(shell grep -w -m1 fma /proc/cpuinfo),-mfma)

# Unit tests, kernels, programs, policies and kvstore under the address and undefined-behaviour sanitizers.
SAN_OPT := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
SAN_SUITES ?= unit kernels cli/tokenize cli/stream cli/chat cli/programs pipe/frames pipe/glue pipe/faults pipe/hostile \
	cli/load sched service/kvstore service/sched service/metrics
.PHONY: san
san:
	@nice $(MAKE) -s B=build-san HARDEN= HARDEN_LD= OPT="$(SAN_OPT)" all unit tools
	@B=build-san ASAN_OPTIONS=detect_leaks=1:abort_on_error=0 UBSAN_OPTIONS=print_stacktrace=1 \
		scripts/run-tests $(SAN_SUITES)

# Programs with threads under ThreadSanitizer. Each process writes its races to a file of its own, because a test may ignore
# the standard error and the status of a service; one such file fails the run.
TSAN_OPT := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
TSAN_SUITES ?= unit kernels service/sched service/workers service/stream
.PHONY: tsan
tsan:
	@nice $(MAKE) -s B=build-tsan HARDEN= HARDEN_LD= OPT="$(TSAN_OPT)" all unit tools
	@rm -f build-tsan/race.*
	@rc=0; B=build-tsan PHASEPIPE_SLOW=10 TSAN_OPTIONS="log_path=$(CURDIR)/build-tsan/race $(TSAN_OPTIONS)" \
		scripts/run-tests $(TSAN_SUITES) || rc=$$?; \
		for f in build-tsan/race.*; do [ ! -e $$f ] || { cat $$f; rc=1; }; done; exit $$rc

# Each harness of tests/fuzz for FUZZ_SECONDS, starting from its seeds and the inputs that earlier runs found.
FUZZ_SECONDS ?= 30
FUZZ_OPT := -O1 -g -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=all
FUZZ_HARNESSES := $(patsubst tests/fuzz/%_fuzz.c,%,$(wildcard tests/fuzz/*_fuzz.c))
# No harness reaches the kernels, and clang takes minutes to put counters into their unrolled loops.
build-fuzz/obj/kernels/cpu/%.o: override OPT := -O0
.PHONY: fuzz fuzz-build
fuzz-build: $(FUZZ_HARNESSES:%=$(B)/fuzz/%)
$(B)/fuzz/%: tests/fuzz/%_fuzz.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -fsanitize=fuzzer -Itests -o $@ $< $(LIB) $(LDLIBS)
fuzz:
	@nice $(MAKE) -s B=build-fuzz CC=clang HARDEN= HARDEN_LD= OPT="$(FUZZ_OPT)" fuzz-build
	@passed=0; failed=0; for h in $(FUZZ_HARNESSES); do \
		mkdir -p build-fuzz/corpus/$$h tests/fuzz/seeds/$$h; \
		if nice build-fuzz/fuzz/$$h -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
			-artifact_prefix=build-fuzz/$$h- build-fuzz/corpus/$$h tests/fuzz/seeds/$$h > build-fuzz/$$h.log 2>&1; then \
			passed=$$((passed + 1)); echo "$$h: $$(grep -c . build-fuzz/$$h.log > /dev/null; \
				sed -n 's/^stat::number_of_executed_units: *//p' build-fuzz/$$h.log) runs"; \
		else failed=$$((failed + 1)); tail -n 40 build-fuzz/$$h.log; fi; done; \
		echo "$$passed passed, $$failed failed"; [ $$failed -eq 0 ]
