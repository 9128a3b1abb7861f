/* Numbers from outside: the whole string must be a number in the range; errors name both. */
#include "cli/cli.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/number.h"

/* Decimal digits only: strtoull alone would accept blanks and signs, and wrap "-1". */
static bool digits(uint64_t *out, const char *s, size_t n)
{
    uint64_t v = 0;
    if (n == 0)
        return false;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9')
            return false;
        if (__builtin_mul_overflow(v, 10, &v) || __builtin_add_overflow(v, (uint64_t)(s[i] - '0'), &v))
            return false;
    }
    *out = v;
    return true;
}

int cli_u64(struct err *e, const char *what, const char *s, uint64_t *out, uint64_t lo, uint64_t hi)
{
    uint64_t v;
    if (lo == 0 && hi == 0)
        hi = UINT64_MAX;
    if (!digits(&v, s, strlen(s)) || v < lo || v > hi)
        return err_set(e, ERR_USAGE, "%s: '%.60s' is not a whole number from %" PRIu64 " to %" PRIu64, what, s, lo, hi);
    *out = v;
    return 0;
}

int cli_i64(struct err *e, const char *what, const char *s, int64_t *out, int64_t lo, int64_t hi)
{
    uint64_t v;
    if (lo == 0 && hi == 0) {
        lo = INT64_MIN;
        hi = INT64_MAX;
    }
    bool neg = s[0] == '-';
    bool ok = digits(&v, s + neg, strlen(s + neg)) && v <= (uint64_t)INT64_MAX + neg;
    int64_t x = ok ? (int64_t)(neg ? 0 - v : v) : 0;
    if (!ok || x < lo || x > hi)
        return err_set(e, ERR_USAGE, "%s: '%.60s' is not a whole number from %" PRId64 " to %" PRId64, what, s, lo, hi);
    *out = x;
    return 0;
}

int cli_f64(struct err *e, const char *what, const char *s, double *out, double lo, double hi)
{
    bool any = lo == 0 && hi == 0;
    char *end = NULL;
    /* The character set excludes what strtod accepts besides: blanks, hexadecimal, "inf" and "nan". */
    bool ok = *s && s[strspn(s, "0123456789+-.eE")] == 0;
    double v = ok ? strtod(s, &end) : 0;
    ok = ok && end != s && *end == 0 && isfinite(v);
    if (!ok && any)
        return err_set(e, ERR_USAGE, "%s: '%.60s' is not a finite number", what, s);
    if (!ok || (!any && (v < lo || v > hi)))
        return err_set(e, ERR_USAGE, "%s: '%.60s' is not a number from %g to %g", what, s, lo, hi);
    *out = v;
    return 0;
}

int cli_size(struct err *e, const char *what, const char *s, uint64_t *out)
{
    static const char suffix[] = "KMGT";
    size_t n = strlen(s);
    unsigned shift = 0;
    const char *at = n ? strchr(suffix, s[n - 1] & ~0x20) : NULL;
    if (at && *at) {
        shift = 10 * (unsigned)(at - suffix + 1);
        n--;
    }
    uint64_t v;
    if (!digits(&v, s, n) || (shift && v >> (64 - shift)))
        return err_set(e, ERR_USAGE, "%s: '%.60s' is not a size in bytes (digits, then nothing or K, M, G, T)", what,
                       s);
    *out = v << shift;
    return 0;
}
