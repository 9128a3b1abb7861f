/*
 * Text to ids: find added tokens, normalise the text between them if the kind requires it, split it into pieces, merge
 * each piece.
 *
 * Without TEXT_CONTROL the result contains no control id: control tokens are not searched for, and neither a byte nor a
 * merge leads to one (vocab.c). This holds for all text of users, raw completions included.
 */
#include <stdlib.h>
#include <string.h>

#include "base/vec.h"
#include "text/text_private.h"

void text_ids_free(struct text_ids *v)
{
    free(v->ids);
    *v = (struct text_ids){0};
}

static int ids_room(struct err *e, struct text_ids *v)
{
    return vec_reserve(e, &v->ids, &v->cap, v->n + 1, sizeof *v->ids, "token ids");
}

int text_ids_push(struct err *e, struct text_ids *v, uint32_t id)
{
    int rc = ids_room(e, v);
    if (!rc)
        v->ids[v->n++] = id;
    return rc;
}

static int put_bos(struct err *e, struct text_ids *out, uint32_t id)
{
    if (out->n > 0 && out->ids[0] == id)
        return 0;
    int rc = ids_room(e, out);
    if (rc)
        return rc;
    memmove(out->ids + 1, out->ids, out->n * sizeof *out->ids);
    out->ids[0] = id;
    out->n++;
    return 0;
}

void text_run_free(struct text_run *w)
{
    text_bpe_free(&w->bpe);
    free(w->spelt);
}

/* The entry that spells a whole piece, or TEXT_NONE. Used by kinds that look pieces up before merging. */
static int whole_piece(struct err *e, uint32_t *id, struct text_run *w, const struct text *t, const char *s, size_t n)
{
    *id = TEXT_NONE;
    if (n > t->n_entry_max)
        return 0;
    if (!w->spelt) {
        w->spelt = malloc(2 * t->n_entry_max + 4);
        if (!w->spelt)
            return err_nomem(e, "spelling", 2 * t->n_entry_max + 4);
    }
    size_t at = 0;
    for (size_t i = 0; i < n; i++)
        at += (size_t)text_utf8_put((uint8_t *)w->spelt + at, text_byte_spelling((uint8_t)s[i]));
    *id = text_entry_find(&t->map, t->row, w->spelt, at);
    if (*id != TEXT_NONE && t->row[*id].kind != ENTRY_NORMAL)
        *id = TEXT_NONE;
    return 0;
}

static int encode_pieces(struct err *e, struct text_ids *out, struct text_run *w, const struct text *t, const char *s,
                         size_t n)
{
    for (size_t i = 0; i < n;) {
        size_t k = text_split_next(t->split, s, n, i);
        uint32_t whole = TEXT_NONE;
        int rc = t->ignore_merges ? whole_piece(e, &whole, w, t, s + i, k) : 0;
        if (!rc && whole != TEXT_NONE)
            rc = text_ids_push(e, out, whole);
        else
            rc = rc ? rc : text_bpe_encode(e, out, &w->bpe, t, (const uint8_t *)s + i, k);
        if (rc)
            return rc;
        i += k;
    }
    return 0;
}

static int encode_gap(struct err *e, struct text_ids *out, struct text_run *w, const struct text *t, const char *s,
                      size_t n)
{
    char *composed = NULL;
    size_t n_composed;
    if (t->nfc) {
        int rc = text_nfc(e, &composed, &n_composed, s, n);
        if (rc)
            return rc;
    }
    int rc = composed ? encode_pieces(e, out, w, t, composed, n_composed) : encode_pieces(e, out, w, t, s, n);
    free(composed);
    return rc;
}

static int encode_with(struct err *e, struct text_ids *out, struct text_run *w, const struct text *t,
                       const struct text_added *added, const char *s, size_t n)
{
    size_t from = 0, at, len;
    int rc = 0;
    while (!rc && from < n) {
        uint32_t id = text_added_find(added, &at, &len, s, n, from);
        size_t end = id != TEXT_NONE ? at : n;
        if (end > from)
            rc = encode_gap(e, out, w, t, s + from, end - from);
        if (id == TEXT_NONE)
            break;
        rc = rc ? rc : text_ids_push(e, out, id);
        from = at + len;
    }
    return rc;
}

int text_encode_run(struct err *e, struct text_ids *out, struct text_run *w, const struct text *t, const char *s,
                    size_t n)
{
    return encode_with(e, out, w, t, &t->added, s, n);
}

int text_encode(struct err *e, const struct text *t, struct text_ids *out, const char *s, size_t n, int flags)
{
    size_t n_before = out->n;
    char *repaired = NULL;
    struct text_run w = {0};
    int rc = 0;
    if (n > TEXT_N_MAX)
        return err_set(e, ERR_NO, "the text has %zu bytes, more than the limit of %zu", n, TEXT_N_MAX);
    if (!text_utf8_valid(s, n)) {
        rc = text_utf8_repair(e, &repaired, &n, s, n);
        s = repaired;
    }
    if (!rc && n > TEXT_N_MAX)
        rc =
            err_set(e, ERR_NO, "the text has %zu bytes after normalisation, more than the limit of %zu", n, TEXT_N_MAX);
    rc = rc ? rc : encode_with(e, out, &w, t, (flags & TEXT_CONTROL) != 0 ? &t->control : &t->added, s, n);
    if (!rc && (flags & TEXT_BOS) != 0 && t->add_bos)
        rc = put_bos(e, out, t->bos);
    if (rc)
        out->n = n_before;
    text_run_free(&w);
    free(repaired);
    return rc;
}
