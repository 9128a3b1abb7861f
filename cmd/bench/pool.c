/* Material of prompts: ids or words that are one token each, so that a prompt has the intended length. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cmd/bench/bench.h"

#define POOL_MIN 32 /* with fewer words, prompts would be too similar */

static int join(struct err *e, struct str *out, const char *const *words, size_t n)
{
    str_clear(out);
    for (size_t i = 0; i < n; i++)
        str_printf(out, i ? " %s" : "%s", words[i]);
    return str_check(e, out, "words");
}

static int by_id(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static size_t once(uint32_t *ids, size_t n)
{
    size_t kept = 0;
    qsort(ids, n, sizeof *ids, by_id);
    for (size_t i = 0; i < n; i++)
        if (!kept || ids[kept - 1] != ids[i])
            ids[kept++] = ids[i];
    return kept;
}

/* Ids of common words, so that no control token is among them. */
static int ids_pool(struct err *e, struct pool *p, const struct opts *o, const struct server *s, struct probe *a)
{
    struct str text = {0};
    if (o->vocab) {
        p->vocab = o->vocab;
        return 0;
    }
    int rc = join(e, &text, bench_words, n_bench_words);
    rc = rc ? rc : probe_tokenize(e, &p->ids, &p->n_ids, a, text.p);
    str_free(&text);
    if (rc)
        return rc;
    if (p->n_ids)
        p->n_ids = once(p->ids, p->n_ids);
    else
        p->vocab = s->n_vocab;
    if (!p->n_ids && !p->vocab)
        return err_set(e, ERR_NO,
                       "the server has no /tokenize for the ids of prompts: give --vocab N, or --prompt-kind text");
    return 0;
}

/* True if the word is one token both at the start of a text and after a space: "w w" has two tokens. */
static int single(struct err *e, bool *is, struct str *text, struct probe *a, const char *word)
{
    const char *twice[] = {word, word};
    uint32_t *ids;
    size_t n;
    int rc = join(e, text, twice, 2);
    rc = rc ? rc : probe_tokenize(e, &ids, &n, a, text->p);
    if (!rc) {
        free(ids);
        *is = n == 2;
    }
    return rc;
}

static int words_pool(struct err *e, struct pool *p, struct probe *a)
{
    struct str text = {0};
    uint32_t *ids = NULL;
    size_t n = 0;
    p->words = malloc(n_bench_words * sizeof *p->words);
    if (!p->words)
        return err_nomem(e, "words", n_bench_words * sizeof *p->words);
    int rc = join(e, &text, bench_words, n_bench_words);
    rc = rc ? rc : probe_tokenize(e, &ids, &n, a, text.p);
    bool all = n == n_bench_words || !n;
    for (size_t i = 0; i < n_bench_words && !rc; i++) {
        bool is = true;
        rc = all ? 0 : single(e, &is, &text, a, bench_words[i]);
        if (!rc && is)
            p->words[p->n_words++] = bench_words[i];
    }
    free(ids);
    str_free(&text);
    if (rc)
        return rc;
    if (n && p->n_words >= POOL_MIN)
        return 0;
    cli_warn(PROG, "%s: lengths of prompts are estimates of one token per word",
             n ? "few words are one token in this vocabulary" : "the server has no /tokenize");
    p->n_words = n_bench_words;
    memcpy(p->words, bench_words, n_bench_words * sizeof *p->words);
    return 0;
}

int pool_open(struct err *e, struct pool *p, const struct opts *o, const struct server *s, struct probe *a)
{
    *p = (struct pool){0};
    if (o->dataset == DATA_LIST && !o->n_warmup)
        return 0;
    return o->ids ? ids_pool(e, p, o, s, a) : words_pool(e, p, a);
}

void pool_close(struct pool *p)
{
    free(p->ids);
    free(p->words);
    *p = (struct pool){0};
}

const char *const bench_words[] = {
    "time",   "year",    "people",  "way",     "day",     "man",     "thing",    "woman",    "life",   "child",
    "world",  "school",  "state",   "family",  "student", "group",   "country",  "problem",  "hand",   "part",
    "place",  "case",    "week",    "company", "system",  "program", "question", "work",     "number", "night",
    "point",  "home",    "water",   "room",    "mother",  "area",    "money",    "story",    "fact",   "month",
    "lot",    "right",   "study",   "book",    "eye",     "job",     "word",     "business", "issue",  "side",
    "kind",   "head",    "house",   "service", "friend",  "father",  "power",    "hour",     "game",   "line",
    "end",    "member",  "law",     "car",     "city",    "name",    "team",     "minute",   "idea",   "body",
    "back",   "parent",  "face",    "others",  "level",   "office",  "door",     "health",   "person", "art",
    "war",    "history", "party",   "result",  "change",  "morning", "reason",   "research", "girl",   "guy",
    "moment", "air",     "teacher", "force",   "order",   "field",   "road",     "light",    "voice",  "price",
    "market", "music",   "paper",   "table",   "class",   "report",  "plan",     "space",    "north",  "south",
    "east",   "west",    "king",    "river",   "sea",     "sun",     "star",     "tree",     "fire",   "stone",
    "green",  "blue",    "red",     "black",   "white",   "good",    "new",      "first",    "last",   "long",
    "great",  "little",  "own",     "other",   "old",     "big",     "high",     "small",    "large",  "next",
    "early",  "young",   "few",     "public",  "bad",     "same",    "able",     "free",     "full",   "real",
    "true",   "open",    "short",   "single",  "hard",    "late",    "low",      "left",     "clear",  "close",
    "common", "dark",    "deep",    "easy",    "fast",    "final",   "fine",     "hot",      "cold",   "human",
    "local",  "major",   "nice",    "past",    "poor",    "ready",   "simple",   "sure",     "top",    "warm",
    "whole",  "wide",    "wrong",   "be",      "have",    "do",      "say",      "get",      "make",   "go",
    "know",   "take",    "see",     "come",    "think",   "look",    "want",     "give",     "use",    "find",
    "tell",   "ask",     "seem",    "feel",    "try",     "leave",   "call",     "run",      "move",   "live",
    "hold",   "bring",   "write",   "sit",     "stand",   "lose",    "pay",      "meet",     "set",    "learn",
    "lead",   "watch",   "follow",  "stop",    "speak",   "read",    "spend",    "grow",     "walk",   "win",
    "teach",  "offer",   "love",    "help",    "show",    "play",    "turn",     "start",    "hear",   "keep",
    "let",    "begin",
};
const size_t n_bench_words = sizeof bench_words / sizeof *bench_words;
