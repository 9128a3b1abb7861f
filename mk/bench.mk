# Measuring, and comparing with peers. The programs of llama.cpp are taken from the folder LLAMA_DIR or from PATH; what needs
# them says so and goes on without.

TOOLS   := $(patsubst tests/tools/%.c,$(B)/tests/tools/%,$(filter-out tests/tools/probe.c,$(wildcard tests/tools/*.c)))
PROBE   := $(B)/tests/tools/probe

$(PROBE): tests/tools/probe.c
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -o $@ $<

$(TOOLS): $(B)/tests/tools/%: tests/tools/%.c $(LIB)
	@mkdir -p $(@D)
	$(CC) $(CFLAGS) $(LDFLAGS) -MMD -MP -o $@ $< $(LIB) $(LDLIBS)

-include $(TOOLS:=.d)

.PHONY: tools bench check-peers
tools: $(TOOLS) $(PROBE)

# make bench BENCH="--only prefill,decode --rounds 5"
bench: $(BINS) tools
	@B=$(B) scripts/bench-peers $(BENCH)

check-peers: $(BINS) tools
	B=$(B) scripts/check-peers
