/*
 * Streaming detokeniser. Bytes are assembled into whole characters, then matched against each stop string; text that
 * may be the start of a stop string is held back. All memory is allocated by text_out_new, so a push cannot fail.
 *
 * Matching is by byte, so the result does not depend on how the bytes are divided into ids. The stop string that is
 * complete first ends the answer; of several complete at the same byte, the longest.
 */
#include <stdlib.h>
#include <string.h>

#include "text/text_private.h"

struct stop {
    const uint8_t *s;
    uint32_t *fail; /* [n + 1] length of the longest proper border of s[0, i) */
    size_t n;
    size_t matched; /* length of the longest suffix of the text so far that is a prefix of this stop string */
};

struct text_out {
    const struct text *t;
    struct stop *stop;
    size_t n_stop;
    uint8_t *stop_bytes;
    uint32_t *fail_cells;
    uint8_t part[4];           /* the bytes of an incomplete character */
    int n_part, n_part_prompt; /* bytes in part; how many of them are from the prompt */
    char *buf;                 /* held text, followed by new text */
    size_t n_given, n_held;
    int stopped;
    bool keep_stop, control;
};

/* Keeps the bytes of an incomplete character at the end of the prompt. */
static void keep_incomplete_character(struct text_out *o, const uint32_t *prompt, size_t n_prompt)
{
    uint8_t tail[3];
    size_t n_tail = 0;
    for (size_t i = n_prompt; i > 0 && n_tail < sizeof tail; i--) {
        size_t n;
        const uint8_t *p = text_piece(o->t, prompt[i - 1], &n);
        if (n == 0)
            break;
        while (n > 0 && n_tail < sizeof tail)
            tail[sizeof tail - ++n_tail] = p[--n];
    }
    for (size_t k = n_tail; k > 0; k--) {
        uint32_t cp;
        if (text_utf8_step(tail + sizeof tail - k, k, &cp) != 0)
            continue;
        memcpy(o->part, tail + sizeof tail - k, k);
        o->n_part = o->n_part_prompt = (int)k;
        return;
    }
}

static void prepare_stop(struct stop *s)
{
    s->fail[0] = 0;
    if (s->n > 0)
        s->fail[1] = 0;
    for (size_t i = 2; i <= s->n; i++) {
        uint32_t k = s->fail[i - 1];
        while (k > 0 && s->s[k] != s->s[i - 1])
            k = s->fail[k];
        s->fail[i] = s->s[k] == s->s[i - 1] ? k + 1 : 0;
    }
}

static int copy_stops(struct err *e, struct text_out *o, size_t *longest, const char *const *stop,
                      const size_t *stop_len, size_t n_stop)
{
    size_t total = 0;
    for (size_t i = 0; i < n_stop; i++) {
        if (!text_utf8_valid(stop[i], stop_len[i]))
            return err_set(e, ERR_NO, "stop string %zu is not valid UTF-8", i);
        if (stop_len[i] > TEXT_N_MAX)
            return err_set(e, ERR_NO, "stop string %zu has %zu bytes, more than the limit of %zu", i, stop_len[i],
                           TEXT_N_MAX);
        total += stop_len[i];
        if (stop_len[i] > *longest)
            *longest = stop_len[i];
    }
    o->stop = calloc(n_stop + 1, sizeof *o->stop);
    o->stop_bytes = malloc(total + 1);
    o->fail_cells = malloc((total + n_stop + 1) * sizeof *o->fail_cells);
    if (!o->stop || !o->stop_bytes || !o->fail_cells)
        return err_nomem(e, "stop strings", 5 * total);
    uint8_t *p = o->stop_bytes;
    uint32_t *f = o->fail_cells;
    for (size_t i = 0; i < n_stop; i++) {
        memcpy(p, stop[i], stop_len[i]);
        o->stop[i] = (struct stop){p, f, stop_len[i], 0};
        prepare_stop(&o->stop[i]);
        p += stop_len[i];
        f += stop_len[i] + 1;
    }
    o->n_stop = n_stop;
    return 0;
}

int text_out_new(struct err *e, struct text_out **out, const struct text *t, const uint32_t *prompt, size_t n_prompt,
                 const char *const *stop, const size_t *stop_len, size_t n_stop)
{
    struct text_out *o = calloc(1, sizeof *o);
    if (!o)
        return err_nomem(e, "answer", sizeof *o);
    o->t = t;
    o->stopped = -1;
    size_t longest = 0;
    int rc = copy_stops(e, o, &longest, stop, stop_len, n_stop);
    /* Held text is shorter than a stop string; each byte of a piece and of an incomplete character gives at most one
     * U+FFFD. */
    size_t n_max = t->n_piece_max > t->n_entry_max ? t->n_piece_max : t->n_entry_max;
    size_t cap = longest + 3 * (n_max + 4) + 4;
    o->buf = !rc ? malloc(cap) : NULL;
    if (!rc && !o->buf)
        rc = err_nomem(e, "answer", cap);
    if (rc) {
        text_out_free(o);
        return rc;
    }
    keep_incomplete_character(o, prompt, n_prompt);
    *out = o;
    return 0;
}

void text_out_free(struct text_out *o)
{
    if (!o)
        return;
    free(o->stop);
    free(o->stop_bytes);
    free(o->fail_cells);
    free(o->buf);
    free(o);
}

void text_out_show(struct text_out *o, bool keep_stop, bool control)
{
    o->keep_stop = keep_stop;
    o->control = control;
}

/* Matches the next byte against one stop string; true if the string is now complete. */
static bool stop_advance(struct stop *s, uint8_t c)
{
    if (s->n == 0)
        return false;
    if (s->matched == s->n)
        s->matched = s->fail[s->n];
    while (s->matched > 0 && s->s[s->matched] != c)
        s->matched = s->fail[s->matched];
    if (s->s[s->matched] == c)
        s->matched++;
    return s->matched == s->n;
}

/* Appends a byte of text after the n bytes in buf. */
static void append_byte(struct text_out *o, size_t *n, uint8_t c)
{
    if (o->stopped >= 0)
        return;
    o->buf[(*n)++] = (char)c;
    for (size_t i = 0; i < o->n_stop; i++)
        if (stop_advance(&o->stop[i], c) && (o->stopped < 0 || o->stop[i].n > o->stop[o->stopped].n))
            o->stopped = (int)i;
    if (o->stopped >= 0 && !o->keep_stop)
        *n -= o->stop[o->stopped].n;
}

static void append_text(struct text_out *o, size_t *n, const uint8_t *s, size_t n_s)
{
    for (size_t i = 0; i < n_s; i++)
        append_byte(o, n, s[i]);
}

/* The first n_bad bytes of the part are not valid UTF-8: appends one U+FFFD, unless all of them are from the prompt. */
static void replace_invalid(struct text_out *o, size_t *n, int n_bad)
{
    if (n_bad > o->n_part_prompt)
        append_text(o, n, (const uint8_t *)"\xef\xbf\xbd", 3);
    o->n_part -= n_bad;
    o->n_part_prompt = o->n_part_prompt > n_bad ? o->n_part_prompt - n_bad : 0;
    memmove(o->part, o->part + n_bad, (size_t)o->n_part);
}

static void take_byte(struct text_out *o, size_t *n, uint8_t c)
{
    o->part[o->n_part++] = c;
    while (o->n_part > 0) {
        uint32_t cp;
        int k = text_utf8_step(o->part, (size_t)o->n_part, &cp);
        if (k == 0)
            return;
        if (k < 0) {
            replace_invalid(o, n, -k);
            continue;
        }
        append_text(o, n, o->part, (size_t)k);
        o->n_part = o->n_part_prompt = 0;
    }
}

/* Moves the held text to the front of buf; discards what the last call returned. */
static size_t keep_held(struct text_out *o)
{
    memmove(o->buf, o->buf + o->n_given, o->n_held);
    size_t n = o->n_held;
    o->n_given = o->n_held = 0;
    return n;
}

void text_out_push(struct text_out *o, uint32_t id, const char **safe, size_t *n_safe, int *stopped)
{
    size_t n_piece, n = keep_held(o), held = 0;
    const uint8_t *p = o->control && text_is_control(o->t, id) ? (const uint8_t *)text_entry(o->t, id, &n_piece)
                                                               : text_piece(o->t, id, &n_piece);
    for (size_t i = 0; i < n_piece && o->stopped < 0; i++)
        take_byte(o, &n, p[i]);
    for (size_t i = 0; o->stopped < 0 && i < o->n_stop; i++)
        if (o->stop[i].matched > held)
            held = o->stop[i].matched;
    o->n_given = n - held;
    o->n_held = held;
    *safe = o->buf;
    *n_safe = o->n_given;
    *stopped = o->stopped;
    if (o->stopped >= 0)
        o->n_part = o->n_part_prompt = 0;
}

void text_out_end(struct text_out *o, const char **rest, size_t *n_rest)
{
    size_t n = keep_held(o);
    if (o->stopped < 0 && o->n_part > o->n_part_prompt) {
        memcpy(o->buf + n, "\xef\xbf\xbd", 3);
        n += 3;
    }
    o->n_part = o->n_part_prompt = 0;
    o->n_given = n;
    *rest = o->buf;
    *n_rest = n;
}
