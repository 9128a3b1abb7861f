/* Added tokens: a trie by bytes, walked from every position of the text. The cost of a position is bounded by the
 * longest added token. */
#include <stdlib.h>

#include "base/vec.h"
#include "text/text_private.h"

static int node_new(struct err *e, uint32_t *out, struct text_added *a, uint8_t byte)
{
    a->n += a->n == 0; /* node 0 is unused */
    int rc = vec_reserve(e, &a->node, &a->cap, a->n + 1, sizeof *a->node, "added tokens");
    if (rc)
        return rc;
    *out = (uint32_t)a->n++;
    a->node[*out] = (struct text_trie_node){0, 0, TEXT_NONE, byte};
    return 0;
}

static uint32_t child_of(const struct text_added *a, uint32_t at, uint8_t byte)
{
    uint32_t c = a->node[at].child;
    while (c != 0 && a->node[c].byte != byte)
        c = a->node[c].sibling;
    return c;
}

int text_added_put(struct err *e, struct text_added *a, const char *s, size_t n, uint32_t id)
{
    if (n == 0)
        return 0;
    uint32_t at = a->first[(uint8_t)s[0]];
    int rc = at == 0 ? node_new(e, &at, a, (uint8_t)s[0]) : 0;
    if (rc)
        return rc;
    a->first[(uint8_t)s[0]] = at;
    for (size_t i = 1; i < n; i++) {
        uint32_t c = child_of(a, at, (uint8_t)s[i]);
        if (c == 0) {
            rc = node_new(e, &c, a, (uint8_t)s[i]);
            if (rc)
                return rc;
            a->node[c].sibling = a->node[at].child;
            a->node[at].child = c;
        }
        at = c;
    }
    if (a->node[at].id == TEXT_NONE)
        a->node[at].id = id;
    return 0;
}

void text_added_free(struct text_added *a)
{
    free(a->node);
}

uint32_t text_added_find(const struct text_added *a, size_t *at, size_t *len, const char *s, size_t n, size_t from)
{
    if (a->n == 0)
        return TEXT_NONE;
    for (size_t i = from; i < n; i++) {
        uint32_t id = TEXT_NONE, node = a->first[(uint8_t)s[i]];
        for (size_t j = i + 1; node != 0; j++) {
            if (a->node[node].id != TEXT_NONE) {
                id = a->node[node].id;
                *len = j - i;
            }
            node = j < n ? child_of(a, node, (uint8_t)s[j]) : 0;
        }
        if (id != TEXT_NONE) {
            *at = i;
            return id;
        }
    }
    return TEXT_NONE;
}
