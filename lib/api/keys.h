/*
 * API keys: their file, which key a request has, and what each may do. Only hashes of keys are kept. Private to
 * lib/api.
 *
 * A file has a key on each line, followed by settings of the key:
 *
 *     KEY [name=NAME] [role=user|admin] [requests-per-minute=N] [tokens-per-minute=N] [concurrent=N] [weight=X]
 *
 * Words are separated by spaces or tabs; a word that begins with # ends the line. Single-threaded.
 */
#ifndef API_KEYS_H
#define API_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err/err.h"
#include "wire/wire.h"

#define KEYS_MAX 1024
#define KEY_BYTES_MAX 512
#define KEY_NAME_BYTES_MAX 48 /* so that the scheduler's setting weight:NAME has room */
#define KEY_HASH_BYTES 32
#define KEY_SALT_BYTES 65 /* 64 hex digits and a NUL */
#define KEYS_FILE_BYTES_MAX (1u << 20)

enum key_role { KEY_ROLE_NONE, KEY_ROLE_USER, KEY_ROLE_ADMIN };
enum key_limit { KEY_REQUESTS, KEY_TOKENS, KEY_CONCURRENT, KEY_LIMITS };

/* A token bucket: holds at most what a minute allows, and is full at first. */
struct key_bucket {
    double level;   /* below 0: more was used than was there */
    uint64_t at_ns; /* when level was computed; 0: never, it is full */
};

struct key {
    uint8_t hash[KEY_HASH_BYTES];
    char name[KEY_NAME_BYTES_MAX + 1]; /* without name=: "key-" and 16 hex digits of the hash */
    enum key_role role;
    double weight;            /* of its tenant in the scheduler; 0: not given */
    uint64_t max[KEY_LIMITS]; /* 0: no limit */
    uint32_t line;            /* of the file */
    /* What follows stays when the file is read again and still has the name. */
    uint32_t n_ref;
    uint32_t n_running; /* requests in flight */
    struct key_bucket bucket[2];
    uint64_t n_request, n_refused[KEY_LIMITS], n_forbidden;
    uint64_t prompt_tokens, cached_tokens, generation_tokens; /* as in the usage of responses */
};

struct keys {
    struct key **v; /* [n] in the order of the file */
    size_t n;
    bool has_roles, has_admin;
};

/* The keys of a file. ERR_NO: the file is not private (base/file.h), or a line is wrong: the text has its number, and
 * no part of a key. */
int keys_read(struct err *e, struct keys **out, const char *path);
/* The same for the text of a file. */
int keys_parse(struct err *e, struct keys **out, const char *path, const char *text, size_t n);
/* Before k replaces `old` (NULL: nothing): k takes over what is counted for the same names. The caller frees `old`. */
void keys_adopt(struct keys *k, const struct keys *old);
void keys_free(struct keys *k); /* NULL is allowed; keys with references stay */

/* The key of the header Authorization, borrowed; NULL: none of these. Takes the same time for each wrong key. */
struct key *keys_find(const struct keys *k, const char *authorization);
struct key *keys_named(const struct keys *k, const char *name); /* borrowed; NULL: none */
struct key *key_ref(struct key *k);
void key_unref(struct key *k); /* NULL is allowed */

/* The cache salt of requests with this key: a hash of the request's own salt (n 0: none), keyed with `hash`. So nobody
 * can choose a salt that gives the salt of another key. */
void key_salt(char out[KEY_SALT_BYTES], const uint8_t hash[KEY_HASH_BYTES], const char *own, size_t n);

/* ---- key_limit.c: limits. now_ns: CLOCK_MONOTONIC ---- */

struct key_refusal {
    enum key_limit limit;
    double retry_s; /* whole seconds, at least 1 */
    char text[300];
};

/* Whether a request may begin; takes nothing. False: *no is filled, and the refusal counted. */
bool key_may_begin(struct key_refusal *no, struct key *k, uint64_t now_ns);
void key_begin(struct key *k, uint64_t now_ns); /* takes a request, until key_end */
void key_end(struct key *k);
/* Takes the tokens of a prompt and of its longest possible answers, n_prompt + n_answer. *charged: those taken for the
 * request so far, 0 before its first prompt; with all of its prompts a request takes at most what the bucket can hold,
 * or it could never begin. False: nothing was taken, *no is filled, and the refusal counted. */
bool key_charge(struct key_refusal *no, uint64_t *charged, struct key *k, uint64_t n_prompt, uint64_t n_answer,
                uint64_t now_ns);
void key_settle(struct key *k, uint64_t charged, uint64_t used); /* the tokens that were used in place of those taken */

/* What the headers x-ratelimit-* show. */
struct key_state {
    uint64_t limit, remaining;
    double reset_s; /* until the bucket is full */
};
/* False: there is no such limit. limit: KEY_REQUESTS or KEY_TOKENS. */
bool key_state(struct key_state *out, struct key *k, enum key_limit limit, uint64_t now_ns);

#endif
