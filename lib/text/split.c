/*
 * Cutting text into the pieces that are merged on their own. The rules are the published patterns of each kind, written
 * out: every character is a letter, a number, a blank or something else, so one pass that looks a character ahead does
 * what the pattern does, without a pattern engine's writable code pages and without backtracking. A run of blanks is
 * looked at three times at most.
 *
 *   gpt2     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   smollm   every \p{N} alone, then gpt2 on what is between
 *   llama3   (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|
 *            \s*[\r\n]+|\s+(?!\S)|\s+
 *   qwen2    the same with \p{N} for \p{N}{1,3}
 */
#include <utf8proc.h>

#include "text/text_private.h"

enum sort { AT_END, LETTER, NUMBER, BLANK, OTHER };

struct look {
    enum sort sort;
    uint32_t cp;
    size_t len;
};

static enum sort sort_of(uint32_t c)
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
        l.sort = sort_of(l.cp);
    }
    return l;
}

/* The end of the run of one sort that begins at `at`. */
static size_t run_end(const char *s, size_t n, size_t at, enum sort sort)
{
    for (;;) {
        struct look l = look_at(s, n, at);
        if (l.sort != sort)
            return at;
        at += l.len;
    }
}

/* Lower case of what a contraction may hold. The long s counts as an s: so do pattern engines when they ignore case. */
static uint32_t fold(uint32_t c, bool ignore_case)
{
    if (!ignore_case)
        return c;
    return c == 0x17f ? 's' : c >= 'A' && c <= 'Z' ? c | 0x20 : c;
}

/* The bytes of 's 't 're 've 'm 'll 'd at `at`, or 0. */
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

/* \s+(?!\S)|\s+ on the run of blanks [at, end): all but the last, which may belong to the word behind it. */
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
    if (c.sort != BLANK)
        return run_end(s, n, at, c.sort) - at;
    struct look d = look_at(s, n, at + 1);
    if (c.cp == ' ' && d.sort != BLANK && d.sort != AT_END)
        return run_end(s, n, at + 1, d.sort) - at;
    return blanks(s, n, at, run_end(s, n, at, BLANK));
}

/* Numbers stand alone, and what is between them is cut as if the text ended before the number. */
static size_t next_smollm(const char *s, size_t n, size_t at)
{
    struct look c = look_at(s, n, at);
    if (c.sort == NUMBER)
        return c.len;
    if (c.sort == LETTER)
        return run_end(s, n, at, LETTER) - at;
    size_t k = contraction(s, n, at, false);
    if (k != 0)
        return k;
    if (c.sort == OTHER)
        return run_end(s, n, at, OTHER) - at;
    struct look d = look_at(s, n, at + 1);
    if (c.cp == ' ' && (d.sort == LETTER || d.sort == OTHER))
        return run_end(s, n, at + 1, d.sort) - at;
    size_t end = run_end(s, n, at, BLANK);
    return blanks(s, look_at(s, n, end).sort == NUMBER ? end : n, at, end);
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
    if (c.sort == LETTER)
        return run_end(s, n, at, LETTER) - at;
    if (c.sort == NUMBER) {
        size_t end = at + c.len;
        for (int i = 1; i < n_digit && d.sort == NUMBER; i++) {
            end += d.len;
            d = look_at(s, n, end);
        }
        return end - at;
    }
    if (d.sort == LETTER && c.cp != '\r' && c.cp != '\n')
        return run_end(s, n, at + c.len, LETTER) - at;
    if (c.sort == OTHER)
        return others_and_newlines(s, n, at) - at;
    if (c.cp == ' ' && d.sort == OTHER)
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
