# phasepipe: build, test, measure. `make`, `make check`, `make san`, `make fuzz`, `make bench`; `make test-NAME` for one part.
# Incremental: no target begins by cleaning.

B       ?= build
CC      ?= gcc
CSTD    := -std=gnu11
WARN    := -Wall -Wextra -Werror -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wpointer-arith -Wvla -Wformat=2
OPT     ?= -O3 -g
# -ffp-contract=off: docs/arithmetic.md says where a product and a sum are fused, nowhere else.
CFLAGS  += $(CSTD) $(WARN) $(OPT) -ffp-contract=off -fno-math-errno -D_GNU_SOURCE -Ilib -I. -pthread
LDFLAGS += -pthread
LDLIBS  += -lmicrohttpd -lgnutls -lnng -lmsgpackc -lutf8proc -ljansson -lsodium -lxxhash -lm

AREAS   := err cli proc wire text model kv engine phase edge sched link http api load
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
$(B)/tests/%_test: tests/%_test.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -Itests -MMD -MP -o $@ $< $(LIB) $(LDLIBS) -lcmocka

.PHONY: unit
unit: $(UNIT)

-include $(wildcard mk/*.mk)
-include $(LIB_OBJ:.o=.d) $(patsubst %.c,$(B)/obj/%.d,$(wildcard cmd/*.c cmd/*/*.c)) $(UNIT:=.d)
