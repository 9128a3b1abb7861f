/* BLAKE2b-256 of vocabularies and of KV blocks, over bytes in a fixed order. */
#include <sodium.h>
#include <string.h>

#include "text/text_private.h"

static void put_le(uint8_t *out, uint64_t v, int n)
{
    for (int i = 0; i < n; i++)
        out[i] = (uint8_t)(v >> 8 * i);
}

static void add_u64(crypto_generichash_state *h, uint64_t v)
{
    uint8_t b[8];
    put_le(b, v, 8);
    crypto_generichash_update(h, b, sizeof b);
}

static void add_bytes(crypto_generichash_state *h, const void *p, size_t n)
{
    add_u64(h, n);
    if (n != 0)
        crypto_generichash_update(h, p, n);
}

/* Hashes everything that determines the ids of a text, each item with its length before it. The chat template is
 * excluded: files that differ only in their template can exchange ids. */
void text_fingerprint_make(struct text *t, const struct gguf_str *merge, uint64_t n_merge)
{
    crypto_generichash_state h;
    crypto_generichash_init(&h, NULL, 0, sizeof t->fingerprint);
    add_bytes(&h, "phasepipe vocabulary 1", 22);
    add_u64(&h, t->split);
    add_u64(&h, (uint64_t)t->nfc | (uint64_t)t->ignore_merges << 1 | (uint64_t)t->add_bos << 2);
    add_u64(&h, t->bos);
    add_u64(&h, t->eos);
    add_u64(&h, t->n_token);
    for (uint32_t i = 0; i < t->n_token; i++) {
        add_u64(&h, t->row[i].kind | (uint64_t)t->row[i].end << 8);
        add_bytes(&h, t->row[i].entry, t->row[i].n_entry);
    }
    add_u64(&h, n_merge);
    for (uint64_t i = 0; i < n_merge; i++)
        add_bytes(&h, merge[i].p, merge[i].n);
    crypto_generichash_final(&h, t->fingerprint, sizeof t->fingerprint);
}

void text_digest(uint8_t out[KV_DIGEST], const uint8_t *parent, const uint32_t *ids, const void *salt, size_t n_salt)
{
    static const uint8_t zero[KV_DIGEST];
    uint8_t le[4 * KV_BLOCK];
    crypto_generichash_state h;
    for (int i = 0; i < KV_BLOCK; i++)
        put_le(le + 4 * i, ids[i], 4);
    crypto_generichash_init(&h, NULL, 0, KV_DIGEST);
    crypto_generichash_update(&h, parent ? parent : zero, KV_DIGEST);
    crypto_generichash_update(&h, le, sizeof le);
    add_bytes(&h, salt, n_salt);
    crypto_generichash_final(&h, out, KV_DIGEST);
}
