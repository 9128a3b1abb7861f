/* Private to cmd/stream. */
#ifndef STREAM_H
#define STREAM_H

#include <stdbool.h>
#include <stdint.h>

#include "edge/reply.h"
#include "text/text.h"
#include "wire/wire.h"

#define PROG "stream"

struct stats; /* stats.c: what --stats prints at the end, for a person */
struct stats *stats_new(void);
void stats_free(struct stats *s);
int stats_add(struct err *e, struct stats *s, const struct wire_end *w);
void stats_print(const struct stats *s);

struct view { /* how answers are shown */
    bool jsonl, unordered;
    struct stats *stats; /* NULL: not asked for */
};

/* order.c: answers on their way, shown in the order of the input. */
struct order;
int order_new(struct err *e, struct order **out, const struct view *v);
void order_free(struct order *o);
int order_out(struct err *e, struct order *o, const struct wire_out *w, const struct text *vocab);
int order_end(struct err *e, struct order *o, const struct wire_end *w);
int order_error(struct err *e, struct order *o, const struct wire_error *w);
/* The input is complete: shows what waited for its turn. ERR_PROTO where an answer never ended. */
int order_bye(struct err *e, struct order *o);
/* Ends a line that is half written, before an error is said. */
void order_cut(struct order *o);

#endif
