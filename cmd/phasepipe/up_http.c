/* What the HTTP server says while it starts: where it listens, and whether Ollama's port was free. With --detach that
 * goes to a file where nobody looks, so up says it again. */
#include <stdio.h>
#include <string.h>

#include "cmd/phasepipe/service.h"

#define AT "listens at "
#define WITHOUT "is not served"

void served_hear(struct served *d, const char *line)
{
    const char *at = strstr(line, AT);
    const char *without = strstr(line, WITHOUT);
    const char *text = strstr(line, ": "); /* behind the program's name */
    if (at && d->n < SERVED_MAX)
        snprintf(d->at[d->n++], sizeof *d->at, "%s", at + strlen(AT));
    if (without && text)
        snprintf(d->without, sizeof d->without, "%s", text + 2);
}

void served_say(struct super *s, const struct served *d)
{
    static const char *const what[SERVED_MAX] = {"the OpenAI API and metrics",
                                                 "the Ollama API"}; /* as the plan has them */
    for (size_t i = 0; i < d->n; i++) {
        const char *scheme = !strncmp(d->at[i], "unix:", 5) ? "" : s->plan->tls_cert ? "https://" : "http://";
        super_say(s, "%s: %s%s", what[i], scheme, d->at[i]);
    }
    if (*d->without)
        super_say(s, "%s", d->without);
}
