/*
 * Pre-tokenizer: splits text into the pieces that are merged separately. The rules are the published patterns of each
 * kind, written as code: each character is a letter, a number, white space or something else, so one pass with one
 * character of lookahead gives the same result, without a regex engine's writable code pages and without backtracking.
 * A run of white space is read at most three times.
 *
 *   gpt2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   smollm   every \p{N} alone, then gpt2 on what is between
 *   llama3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *            \s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2    the same with \p{N} for \p{N}{1,3}
 */
#include <utf8proc.h>

#include "text/text_private.h"

enum char_kind { AT_END, LETTER, NUMBER, BLANK, OTHER };

struct look {
    enum char_kind kind;
    uint32_t cp;
    size_t len;
};

static enum char_kind kind_of(uint32_t c)
{
    if (c < 0x80) {
        if ((c | 0x20) >= 'a' && (c | 0x20) <= 'z')
            return LETTER;
        if (c >= '0' && c <= '9')
            return NUMBER;
        return text_is_space(c) ? BLANK : OTHER;
    }
    if (text_is_space(c))
        return BLANK;
    switch (utf8proc_category((utf8proc_int32_t)c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return LETTER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return NUMBER;
    default:
        return OTHER;
    }
}

static struct look look_at(const char *s, size_t n, size_t at)
{
    struct look l = {AT_END, 0, 0};
    if (at < n) {
        l.len = (size_t)text_utf8_step((const uint8_t *)s + at, n - at, &l.cp);
        l.kind = kind_of(l.cp);
    }
    return l;
}

/* End of the run of one character class that starts at `at`. */
static size_t run_end(const char *s, size_t n, size_t at, enum char_kind kind)
{
    for (;;) {
        struct look l = look_at(s, n, at);
        if (l.kind != kind)
            return at;
        at += l.len;
    }
}

/* Lower case of the letters of contractions. U+017F (long s) folds to s, as in regex engines that ignore case. */
static uint32_t fold(uint32_t c, bool ignore_case)
{
    if (!ignore_case)
        return c;
    return c == 0x17f ? 's' : c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

/* Length of a contraction ('s 't 're 've 'm 'll 'd) at `at`, or 0. */
static size_t contraction(const char *s, size_t n, size_t at, bool ignore_case)
{
    if (s[at] != '\'')
        return 0;
    struct look a = look_at(s, n, at + 1);
    uint32_t x = fold(a.cp, ignore_case);
    if (x == 's' || x == 't' || x == 'm' || x == 'd')
        return 1 + a.len;
    if (x != 'r' && x != 'v' && x != 'l')
        return 0;
    struct look b = look_at(s, n, at + 1 + a.len);
    uint32_t y = fold(b.cp, ignore_case);
    return y == (x == 'l' ? 'l' : 'e') ? 1 + a.len + b.len : 0;
}

/* \s+(?!\S)|\s+ on the run of white space [at, end): all but its last character, which may belong to the next word. */
static size_t blanks(const char *s, size_t n, size_t at, size_t end)
{
    if (end == n)
        return end - at;
    size_t last = end - 1;
    while (((uint8_t)s[last] & 0xc0) == 0x80)
        last--;
    return last > at ? last - at : end - at;
}

static size_t next_gpt2(const char *s, size_t n, size_t at)
{
    size_t k = contraction(s, n, at, false);
    if (k != 0)
        return k;
    struct look c = look_at(s, n, at);
    if (c.kind != BLANK)
        return run_end(s, n, at, c.kind) - at;
    struct look d = look_at(s, n, at + 1);
    if (c.cp == ' ' && d.kind != BLANK && d.kind != AT_END)
        return run_end(s, n, at + 1, d.kind) - at;
    return blanks(s, n, at, run_end(s, n, at, BLANK));
}

/* Numbers stand alone; the text between them is split as if it ended before the number. */
static size_t next_smollm(const char *s, size_t n, size_t at)
{
    struct look c = look_at(s, n, at);
    if (c.kind == NUMBER)
        return c.len;
    if (c.kind == LETTER)
        return run_end(s, n, at, LETTER) - at;
    size_t k = contraction(s, n, at, false);
    if (k != 0)
        return k;
    if (c.kind == OTHER)
        return run_end(s, n, at, OTHER) - at;
    struct look d = look_at(s, n, at + 1);
    if (c.cp == ' ' && (d.kind == LETTER || d.kind == OTHER))
        return run_end(s, n, at + 1, d.kind) - at;
    size_t end = run_end(s, n, at, BLANK);
    return blanks(s, look_at(s, n, end).kind == NUMBER ? end : n, at, end);
}

static size_t others_and_newlines(const char *s, size_t n, size_t at)
{
    size_t end = run_end(s, n, at, OTHER);
    while (end < n && (s[end] == '\r' || s[end] == '\n'))
        end++;
    return end;
}

static size_t next_llama3(const char *s, size_t n, size_t at, int n_digit)
{
    size_t k = contraction(s, n, at, true);
    if (k != 0)
        return k;
    struct look c = look_at(s, n, at);
    struct look d = look_at(s, n, at + c.len);
    if (c.kind == LETTER)
        return run_end(s, n, at, LETTER) - at;
    if (c.kind == NUMBER) {
        size_t end = at + c.len;
        for (int i = 1; i < n_digit && d.kind == NUMBER; i++) {
            end += d.len;
            d = look_at(s, n, end);
        }
        return end - at;
    }
    if (d.kind == LETTER && c.cp != '\r' && c.cp != '\n')
        return run_end(s, n, at + c.len, LETTER) - at;
    if (c.kind == OTHER)
        return others_and_newlines(s, n, at) - at;
    if (c.cp == ' ' && d.kind == OTHER)
        return others_and_newlines(s, n, at + 1) - at;
    size_t end = run_end(s, n, at, BLANK);
    for (size_t i = end; i > at; i--)
        if (s[i - 1] == '\r' || s[i - 1] == '\n')
            return i - at;
    return blanks(s, n, at, end);
}

size_t text_split_next(enum text_split how, const char *s, size_t n, size_t from)
{
    switch (how) {
    case SPLIT_SMOLLM:
        return next_smollm(s, n, from);
    case SPLIT_LLAMA3:
        return next_llama3(s, n, from, 3);
    case SPLIT_QWEN2:
        return next_llama3(s, n, from, 1);
    case SPLIT_GPT2:
        break;
    }
    return next_gpt2(s, n, from);
}
