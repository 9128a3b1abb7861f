/* What the HTTP server says while it starts: where it listens, and whether Ollama's port was free. With --detach that
 * goes to a file where nobody looks, so up says it again. */
#include <stdio.h>
#include <string.h>

#include "cmd/phasepipe/service.h"

#define AT "listens at "
#define WITHOUT "; the Ollama API is not served"

void served_hear(struct served *d, const char *line)
{
    const char *text = strstr(line, ": "); /* behind the program's name */
    size_t n = text ? strlen(text += 2) : 0;
    if (!text) /* what clients wrote may be in a line too, but neither begins nor ends it */
        return;
    if (!strncmp(text, AT, strlen(AT)) && d->n < SERVED_MAX)
        snprintf(d->at[d->n++], sizeof *d->at, "%s", text + strlen(AT));
    if (n > strlen(WITHOUT) && !strcmp(text + n - strlen(WITHOUT), WITHOUT))
        snprintf(d->without, sizeof d->without, "%s", text);
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
