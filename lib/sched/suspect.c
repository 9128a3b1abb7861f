/*
 * Poison containment. A request whose input makes a worker die would, by retries, end one worker after another. So the
 * workers that die while an attempt of a request there is fresh are counted. At the setting `deaths` the request fails
 * by name. An attempt is fresh until it has produced something: a prefilled sequence, or a token.
 *
 * Requests that were fresh on the same worker by chance are suspects, too. To find the guilty one, a suspect is placed
 * only on a worker without another fresh attempt, and nothing is placed beside it while it is fresh. So the next death
 * counts against the guilty one alone. A suspect delays others by one prefill.
 *
 * The session of a worker may break although it lives. It then joins again with the same incarnation, and its count is
 * taken back.
 */
#include "sched/machine.h"

#include <stdio.h>

#define HOLD_NS (250 * NS_MS)  /* after a suspect has waited for this long, no fresh attempt of others begins … */
#define HOLD_NS_MAX (5 * NS_S) /* … until it has waited for this long; then others may begin */

bool suspect_death(struct sched *s, struct request *r, const struct worker *w, bool fresh)
{
    char text[300];
    if (!fresh || w->pub.draining)
        return false;
    r->deaths++;
    r->died_incarnation = w->incarnation;
    if (r->deaths < s->deaths_max)
        return false;
    snprintf(text, sizeof text,
             "%u workers have died while they began to compute this request (job %llu of gateway %.64s), the last was "
             "%.64s: it is not submitted again (setting deaths)",
             r->deaths, (unsigned long long)r->pub.job, r->gw->name, w->name);
    handle_release(s, r);
    req_end(s, r, END_ERROR, ERR_SYS, text);
    return true;
}

void suspects_rejoined(struct sched *s, uint64_t incarnation)
{
    for (size_t i = 0; incarnation && s->requests.slot && i <= s->requests.mask; i++) {
        struct request *r = s->requests.slot[i].p;
        if (!r || r->died_incarnation != incarnation)
            continue;
        r->died_incarnation = 0;
        if (!--r->deaths)
            list_remove(&r->suspect);
    }
}

bool suspect_room(const struct sched *s, const struct request *r, const struct worker *w)
{
    if (w->n_suspect)
        return false;
    if (r->deaths)
        return !w->n_fresh;
    if (list_empty(&s->suspects))
        return true;
    uint64_t waited = s->now_ns - list_entry(s->suspects.next, struct request, suspect)->pub.since_ns;
    return waited < HOLD_NS || waited > HOLD_NS_MAX;
}
