/* The families of API keys: as many series as the file has keys. */
#include "api/keys.h"
#include "api/metrics_impl.h"

static uint64_t requests(const struct key *k)
{
    return k->n_request;
}

static uint64_t running(const struct key *k)
{
    return k->n_running;
}

static uint64_t prompt_tokens(const struct key *k)
{
    return k->prompt_tokens;
}

static uint64_t cached_tokens(const struct key *k)
{
    return k->cached_tokens;
}

static uint64_t generation_tokens(const struct key *k)
{
    return k->generation_tokens;
}

static void family(struct page *p, const struct keys *k, const char *name, const char *type, const char *help,
                   uint64_t (*value)(const struct key *k))
{
    page_family(p, name, type, help);
    for (size_t i = 0; i < k->n; i++) {
        const struct label l = label_of("key", k->v[i]->name);
        page_u64(p, &l, 1, value(k->v[i]));
    }
}

static void refused(struct page *p, const struct keys *k)
{
    static const char *const limits[] = {"requests", "tokens", "concurrent", "role"};
    page_family(p, "phasepipe:key_refused_total", "counter",
                "Requests of a key that were refused, by the limit, or because of its role.");
    for (size_t i = 0; i < k->n; i++)
        for (size_t l = 0; l <= KEY_LIMITS; l++) {
            const struct label label[] = {label_of("key", k->v[i]->name), label_of("limit", limits[l])};
            page_u64(p, label, 2, l < KEY_LIMITS ? k->v[i]->n_refused[l] : k->v[i]->n_forbidden);
        }
}

void metrics_keys(struct page *p, const struct keys *k)
{
    if (!k)
        return;
    family(p, k, "phasepipe:key_requests_total", "counter", "Requests of a key that count for its limits.", requests);
    family(p, k, "phasepipe:key_requests_running", "gauge", "Those in flight.", running);
    refused(p, k);
    family(p, k, "phasepipe:key_prompt_tokens_total", "counter", "Tokens of its prompts.", prompt_tokens);
    family(p, k, "phasepipe:key_cached_tokens_total", "counter", "Those from the cache.", cached_tokens);
    family(p, k, "phasepipe:key_generation_tokens_total", "counter", "Tokens of its answers.", generation_tokens);
}
