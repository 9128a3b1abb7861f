/* Properties of ids. */
#include "text/text_private.h"

#include <string.h>

uint32_t text_n_token(const struct text *t)
{
    return t->n_token;
}

const uint8_t *text_fingerprint(const struct text *t)
{
    return t->fingerprint;
}

bool text_is_control(const struct text *t, uint32_t id)
{
    return id < t->n_token && (t->row[id].kind == ENTRY_CONTROL || t->row[id].kind == ENTRY_UNKNOWN);
}

const char *text_file(const struct text *t)
{
    const char *slash = strrchr(t->path, '/');
    return slash ? slash + 1 : t->path;
}

bool text_is_end(const struct text *t, uint32_t id)
{
    return id < t->n_token && t->row[id].end;
}

bool text_bos(const struct text *t, uint32_t *id)
{
    *id = t->bos;
    return t->bos != TEXT_NONE;
}

bool text_pad(const struct text *t, uint32_t *id)
{
    *id = t->pad;
    return t->pad != TEXT_NONE;
}

bool text_eos(const struct text *t, uint32_t *id)
{
    if (t->eos == TEXT_NONE)
        return false;
    *id = t->eos;
    return true;
}

size_t text_longest(const struct text *t)
{
    return t->n_entry_max
               ? t->n_entry_max
               : 1; /* an entry uses at least one character per byte, so it is at least as long as its piece */
}

const uint8_t *text_piece(const struct text *t, uint32_t id, size_t *n)
{
    static const uint8_t nothing[1];
    *n = id < t->n_token ? t->row[id].n_piece : 0;
    return *n != 0 ? t->row[id].piece : nothing;
}

const char *text_entry(const struct text *t, uint32_t id, size_t *n)
{
    *n = id < t->n_token ? t->row[id].n_entry : 0;
    return *n != 0 ? t->row[id].entry : "";
}
