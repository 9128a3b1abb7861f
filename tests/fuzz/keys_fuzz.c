/* Fuzzes the file of API keys. What is accepted has names that are unique and of few characters, and can be found by
 * its keys; counts move to a second reading; what is refused names its line. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/keys.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(bool is, const char *what)
{
    if (is)
        return;
    (void)!write(STDERR_FILENO, what, strlen(what));
    abort();
}

static void check_keys(const struct keys *k)
{
    check(k->n > 0 && k->n <= KEYS_MAX, "a wrong number of keys\n");
    for (size_t i = 0; i < k->n; i++) {
        const char *name = k->v[i]->name;
        size_t len = strnlen(name, sizeof k->v[i]->name);
        check(len > 0 && len < sizeof k->v[i]->name, "a name has a wrong length\n");
        for (const char *c = name; *c; c++)
            check((*c >= '0' && *c <= '9') || (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') || strchr("._-", *c),
                  "a name has a wrong character\n");
        for (size_t j = 0; j < i; j++)
            check(strcmp(name, k->v[j]->name), "two keys have one name\n");
        check(k->v[i]->n_ref == 1, "a key has a wrong number of references\n");
    }
}

/* The first word of the last line that is no comment is the last key. */
static void check_last(const struct keys *k, const char *text, size_t n)
{
    char header[8 + KEY_BYTES_MAX + 1] = "Bearer ";
    size_t len = 0;
    const char *word = NULL;
    for (size_t at = 0; at < n;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t stop = end ? (size_t)(end - text) : n, from = at;
        while (from < stop && strchr(" \t\r", text[from]))
            from++;
        if (from < stop && text[from] != '#') {
            word = text + from;
            len = 0;
            while (from + len < stop && !strchr(" \t\r", word[len]))
                len++;
        }
        at = stop + 1;
    }
    check(word && len <= KEY_BYTES_MAX, "accepted without a key\n");
    memcpy(header + 7, word, len);
    check(keys_find(k, header) == k->v[k->n - 1], "the last key is not found\n");
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e = {0};
    struct keys *k, *again;
    if (keys_parse(&e, &k, "f", (const char *)p, n)) {
        check(e.code == ERR_NO && e.text[0] == 'f' && e.text[1] == ':' && !k, "a refusal is not as it should be\n");
        return 0;
    }
    check_keys(k);
    check_last(k, (const char *)p, n);
    k->v[0]->n_request = 7;
    check(!keys_parse(&e, &again, "f", (const char *)p, n), "the second reading is refused\n");
    keys_adopt(again, k);
    keys_free(k);
    check_keys(again);
    check(again->v[0]->n_request == 7, "a count is lost\n");
    keys_free(again);
    return 0;
}
