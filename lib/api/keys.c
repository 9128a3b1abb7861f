/* API keys: the file, and the key of a request. */
#include "api/keys.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include <sodium.h>

#include "base/file.h"
#include "base/vec.h"
#include "cli/cli.h"

#define VALUE_BYTES_MAX 128
#define SALT_TEXT "phasepipe cache salt"
#define SETTINGS_TEXT "name, role, requests-per-minute, tokens-per-minute, concurrent and weight"

static void hash_of(uint8_t out[KEY_HASH_BYTES], const char *p, size_t n)
{
    crypto_generichash(out, KEY_HASH_BYTES, (const uint8_t *)p, n, NULL, 0);
}

/* ---- settings ---- */

static int set_name(struct err *e, struct key *k, const char *v)
{
    size_t n = strlen(v);
    if (n == 0 || n > KEY_NAME_BYTES_MAX)
        return err_set(e, ERR_NO, "name: %zu bytes, expected 1 to %d", n, KEY_NAME_BYTES_MAX);
    if (strspn(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-") != n)
        return err_set(e, ERR_NO, "name: expected letters, digits, '.', '_' and '-' only");
    memcpy(k->name, v, n + 1);
    return 0;
}

static int set_role(struct err *e, struct key *k, const char *v)
{
    k->role = !strcmp(v, "user") ? KEY_ROLE_USER : !strcmp(v, "admin") ? KEY_ROLE_ADMIN : KEY_ROLE_NONE;
    return k->role ? 0 : err_set(e, ERR_NO, "role: expected user or admin");
}

static int set_requests(struct err *e, struct key *k, const char *v)
{
    return cli_u64(e, "requests-per-minute", v, &k->max[KEY_REQUESTS], 1, 1000000);
}

static int set_tokens(struct err *e, struct key *k, const char *v)
{
    return cli_u64(e, "tokens-per-minute", v, &k->max[KEY_TOKENS], 1, 1000000000000);
}

static int set_concurrent(struct err *e, struct key *k, const char *v)
{
    return cli_u64(e, "concurrent", v, &k->max[KEY_CONCURRENT], 1, 65536);
}

static int set_weight(struct err *e, struct key *k, const char *v)
{
    return cli_f64(e, "weight", v, &k->weight, 0.001, 1000);
}

static const struct setting {
    const char *name;
    int (*set)(struct err *e, struct key *k, const char *value);
} settings[] = {
    {"name", set_name},
    {"role", set_role},
    {"requests-per-minute", set_requests},
    {"tokens-per-minute", set_tokens},
    {"concurrent", set_concurrent},
    {"weight", set_weight},
};
#define SETTINGS (sizeof settings / sizeof *settings)

struct word {
    const char *p;
    size_t n;
};

/* The setting that a word begins with, "NAME="; SETTINGS: none. */
static size_t setting_of(struct word w)
{
    for (size_t i = 0; i < SETTINGS; i++) {
        size_t n = strlen(settings[i].name);
        if (w.n > n && !memcmp(w.p, settings[i].name, n) && w.p[n] == '=')
            return i;
    }
    return SETTINGS;
}

/* ---- lines ---- */

/* The next word of a line, which it is cut from; n 0: none. */
static struct word next_word(struct word *line)
{
    struct word w;
    while (line->n && (*line->p == ' ' || *line->p == '\t'))
        line->p++, line->n--;
    w = (struct word){line->p, 0};
    while (w.n < line->n && w.p[w.n] != ' ' && w.p[w.n] != '\t')
        w.n++;
    line->p += w.n;
    line->n -= w.n;
    return w.n && *w.p == '#' ? (struct word){w.p, 0} : w;
}

static int check_bytes(struct err *e, struct word line)
{
    for (size_t i = 0; i < line.n; i++)
        if ((line.p[i] < ' ' && line.p[i] != '\t') || line.p[i] > '~')
            return err_set(e, ERR_NO, "byte %zu is not printable ASCII", i + 1);
    return 0;
}

static int read_setting(struct err *e, struct key *k, unsigned *given, struct word w, unsigned n_word)
{
    char value[VALUE_BYTES_MAX + 1];
    size_t at = setting_of(w);
    if (at == SETTINGS) /* not printed: it may be part of a key with a space */
        return err_set(e, ERR_NO, "word %u is not a setting NAME=VALUE; the settings are " SETTINGS_TEXT, n_word);
    size_t n_name = strlen(settings[at].name) + 1, n = w.n - n_name;
    if (*given >> at & 1)
        return err_set(e, ERR_NO, "%s is given twice", settings[at].name);
    if (n > VALUE_BYTES_MAX)
        return err_set(e, ERR_NO, "%s: %zu bytes, the limit is %d", settings[at].name, n, VALUE_BYTES_MAX);
    memcpy(value, w.p + n_name, n);
    value[n] = 0;
    *given |= 1u << at;
    return settings[at].set(e, k, value);
}

/* *out: NULL for a line without a key. */
static int read_line(struct err *e, struct key **out, struct word line)
{
    unsigned given = 0, n_word = 1;
    char hex[17];
    *out = NULL;
    if (check_bytes(e, line))
        return e->code;
    struct word w = next_word(&line);
    if (!w.n)
        return 0;
    if (w.n > KEY_BYTES_MAX)
        return err_set(e, ERR_NO, "the key has %zu bytes, the limit is %d", w.n, KEY_BYTES_MAX);
    if (setting_of(w) < SETTINGS)
        return err_set(e, ERR_NO, "the line begins with a setting; the key comes first");
    struct key *k = calloc(1, sizeof *k);
    if (!k)
        return err_nomem(e, "a key", sizeof *k);
    k->n_ref = 1;
    hash_of(k->hash, w.p, w.n);
    snprintf(k->name, sizeof k->name, "key-%s", sodium_bin2hex(hex, sizeof hex, k->hash, 8));
    while ((w = next_word(&line)).n)
        if (read_setting(e, k, &given, w, ++n_word)) {
            free(k);
            return e->code;
        }
    *out = k;
    return 0;
}

/* ---- files ---- */

struct key *keys_named(const struct keys *k, const char *name)
{
    for (size_t i = 0; k && i < k->n; i++)
        if (!strcmp(k->v[i]->name, name))
            return k->v[i];
    return NULL;
}

static int add(struct err *e, struct keys *k, struct key *x)
{
    const struct key *same = keys_named(k, x->name);
    for (size_t i = 0; i < k->n; i++)
        if (!sodium_memcmp(k->v[i]->hash, x->hash, KEY_HASH_BYTES))
            return err_set(e, ERR_NO, "the same key as on line %u", (unsigned)k->v[i]->line);
    if (same)
        return err_set(e, ERR_NO, "name: '%s' is that of line %u too", x->name, (unsigned)same->line);
    if (k->n == KEYS_MAX)
        return err_set(e, ERR_NO, "too many API keys: the limit is %d", KEYS_MAX);
    k->v[k->n++] = x;
    k->has_roles = k->has_roles || x->role;
    k->has_admin = k->has_admin || x->role == KEY_ROLE_ADMIN;
    return 0;
}

static int parse_lines(struct err *e, struct keys *k, const char *path, const char *text, size_t n)
{
    uint32_t number = 0;
    for (size_t at = 0; at < n;) {
        struct key *x;
        const char *end = memchr(text + at, '\n', n - at);
        struct word line = {text + at, end ? (size_t)(end - text) - at : n - at};
        at += line.n + 1;
        number++;
        if (line.n && line.p[line.n - 1] == '\r')
            line.n--;
        int rc = read_line(e, &x, line);
        if (x)
            x->line = number;
        rc = rc || !x ? rc : add(e, k, x);
        if (rc && x)
            key_unref(x);
        if (rc) {
            err_prefix(e, "%s:%u", path, (unsigned)number);
            return e->code = rc == ERR_SYS ? rc : ERR_NO;
        }
    }
    return k->n ? 0 : err_set(e, ERR_NO, "%s: the key file contains no API key", path);
}

/* Keeps the object that requests in flight refer to, and its counts, with the key and limits of the new file. */
void keys_adopt(struct keys *k, const struct keys *old)
{
    for (size_t i = 0; i < k->n; i++) {
        struct key *x = k->v[i], *was = keys_named(old, x->name);
        if (!was)
            continue;
        for (int l = KEY_REQUESTS; l <= KEY_TOKENS; l++)
            if (!was->max[l])
                was->bucket[l].at_ns = 0;
        memcpy(was->hash, x->hash, sizeof was->hash);
        memcpy(was->max, x->max, sizeof was->max);
        was->role = x->role;
        was->weight = x->weight;
        was->line = x->line;
        k->v[i] = key_ref(was);
        key_unref(x);
    }
}

int keys_parse(struct err *e, struct keys **out, const char *path, const char *text, size_t n)
{
    *out = NULL;
    if (sodium_init() < 0)
        return err_set(e, ERR_SYS, "libsodium cannot start");
    struct keys *k = calloc(1, sizeof *k);
    if (!k || !(k->v = calloc(KEYS_MAX, sizeof *k->v))) {
        free(k);
        return err_nomem(e, "keys", KEYS_MAX * sizeof(struct key *));
    }
    if (parse_lines(e, k, path, text, n)) {
        keys_free(k);
        return e->code;
    }
    *out = k;
    return 0;
}

int keys_read(struct err *e, struct keys **out, const char *path)
{
    uint8_t *text = NULL;
    size_t n = 0;
    *out = NULL;
    int rc = file_load(e, &text, &n, path, KEYS_FILE_BYTES_MAX, "key file", FILE_SECRET);
    rc = rc ? rc : keys_parse(e, out, path, (const char *)text, n);
    file_forget(text, n);
    return rc;
}

void keys_free(struct keys *k)
{
    if (!k)
        return;
    for (size_t i = 0; i < k->n; i++)
        key_unref(k->v[i]);
    free(k->v);
    free(k);
}

/* ---- the key of a request ---- */

struct key *keys_find(const struct keys *k, const char *authorization)
{
    uint8_t h[KEY_HASH_BYTES];
    struct key *found = NULL;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return NULL;
    const char *p = authorization + 7;
    while (*p == ' ')
        p++;
    hash_of(h, p, strlen(p));
    for (size_t i = 0; i < k->n; i++) /* all, so that the time reveals nothing about a key */
        if (!sodium_memcmp(h, k->v[i]->hash, KEY_HASH_BYTES))
            found = k->v[i];
    return found;
}

struct key *key_ref(struct key *k)
{
    k->n_ref++;
    return k;
}

void key_unref(struct key *k)
{
    if (k && !--k->n_ref)
        free(k);
}

void key_salt(char out[KEY_SALT_BYTES], const uint8_t hash[KEY_HASH_BYTES], const char *own, size_t n)
{
    uint8_t sum[(KEY_SALT_BYTES - 1) / 2];
    crypto_generichash_state s;
    crypto_generichash_init(&s, hash, KEY_HASH_BYTES, sizeof sum);
    crypto_generichash_update(&s, (const uint8_t *)SALT_TEXT, sizeof SALT_TEXT);
    crypto_generichash_update(&s, (const uint8_t *)own, n);
    crypto_generichash_final(&s, sum, sizeof sum);
    sodium_bin2hex(out, KEY_SALT_BYTES, sum, sizeof sum);
}
