/* Fuzzes the load generator's parsers: event streams, which give the same events for any split into pieces, and lines
 * of traces and lists. The first byte selects the parser. */
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "load/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct digest {
    uint64_t hash, events;
};

static bool on_event(void *arg, const char *data, size_t n, bool error)
{
    struct digest *h = arg;
    struct load_event ev;
    struct err e;
    h->events++;
    h->hash = (h->hash ^ error) * 1099511628211u;
    for (size_t i = 0; i < n; i++)
        h->hash = (h->hash ^ (uint8_t)data[i]) * 1099511628211u;
    if (load_event_read(&e, &ev, data, n))
        return true;
    assert(!ev.text || (ev.text >= data && ev.text + ev.n_text < data + n));
    assert(!ev.error || (ev.error >= data && ev.error + ev.n_error < data + n));
    assert(!ev.has_prompt || ev.usage);
    return true;
}

/* Parses in pieces of `step` bytes, each in its own allocation, so that an overrun is detected. */
static struct digest stream(const uint8_t *data, size_t size, size_t step)
{
    struct load_sse s = {0};
    struct digest h = {0};
    struct err e;
    for (size_t at = 0; at < size; at += step) {
        size_t n = size - at < step ? size - at : step;
        char *piece = malloc(n);
        assert(piece);
        memcpy(piece, data + at, n);
        int rc = load_sse_feed(&e, &s, on_event, &h, piece, n);
        assert(!rc);
        free(piece);
    }
    load_sse_free(&s);
    return h;
}

static void lines(const uint8_t *data, size_t size, bool list)
{
    struct load_items t = {0};
    struct err e;
    double zero = -1;
    while (size) {
        const uint8_t *end = memchr(data, '\n', size);
        size_t n = end ? (size_t)(end - data) + 1 : size;
        char *line = malloc(n + 1); /* as getline returns it */
        assert(line);
        memcpy(line, data, n);
        line[n] = 0;
        int rc = list ? load_list_line(&e, &t, line, n) : load_trace_line(&e, &t, &zero, line, n);
        assert(!rc || e.code == rc);
        free(line);
        data += n;
        size -= n;
    }
    for (size_t i = 0; i < t.n; i++) {
        assert(isfinite(t.v[i].at_s) && t.v[i].at_s >= 0);
        assert(t.v[i].n_prompt <= LOAD_TOKENS_MAX && t.v[i].n_out <= LOAD_TOKENS_MAX);
        assert(list ? t.v[i].body != NULL : t.v[i].n_prompt > 0 && t.v[i].n_out > 0);
        assert((uint64_t)t.v[i].n_hash * LOAD_BLOCK < (uint64_t)t.v[i].n_prompt + LOAD_BLOCK);
    }
    load_items_free(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    if (*data % 4 < 2) {
        struct digest a = stream(data + 1, size - 1, size), b = stream(data + 1, size - 1, 1 + *data / 4);
        assert(a.hash == b.hash && a.events == b.events);
    } else {
        lines(data + 1, size - 1, *data % 4 == 2);
    }
    return 0;
}
