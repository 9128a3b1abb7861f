#include "base/log_limit.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/time.h"

void log_limit(struct log_limit *l, uint64_t now_ns, const char *text, void (*log)(void *arg, const char *text),
               void *arg)
{
    char more[100];
    if (!log)
        return;
    if (!l->n || now_ns - l->since_ns >= NS_S) {
        if (l->n > LOG_LIMIT_LINES) {
            snprintf(more, sizeof more, "%" PRIu64 " more lines of this kind were not logged", l->n - LOG_LIMIT_LINES);
            log(arg, more);
        }
        *l = (struct log_limit){.since_ns = now_ns};
    }
    if (l->n++ < LOG_LIMIT_LINES)
        log(arg, text);
}
