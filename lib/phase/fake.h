/*
 * An engine that computes next to nothing and takes the time that a real one would: for tests of scheduling with real
 * processes. The KV of a token is a running hash of all ids up to it, so the next token follows from the KV alone, and
 * KV that is not what the ids say (of a block that was given away, or is another's) is found. Private to lib/phase.
 */
#ifndef FAKE_H
#define FAKE_H

#include "phase/stage.h"

/* Its KV: one layer, one head of 8, int8; the fingerprint is 32 times this byte. */
#define FAKE_ARITH "fake1"
#define FAKE_HEAD 8
#define FAKE_BYTE 0xfa

struct fake;
/* By o->engine and the vocabulary of o->model. ERR_USAGE: no such engine. *m is set, and the caller's, where the file
 * could be read at all. */
int fake_open(struct err *e, struct fake **out, struct model **m, const struct phase_opts *o);
void fake_free(struct fake *f);
/* ns: of a prefill step a + b·new + c·((cached + new)² - cached²), of a decode step a + b·context + c·batch. */
void fake_cost(const struct fake *f, float pre[3], float dec[3]);

/* One step over the rows of b: reads, checks and writes KV, chooses tokens, sleeps. A request whose KV was changed gets
 * err set. */
int fake_step(struct err *e, struct stage *s, struct batch *b);

#endif
