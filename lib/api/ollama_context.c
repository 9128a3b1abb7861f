/* `context` of /api/generate: a conversation as token ids, to be continued. */
#include <inttypes.h>
#include <string.h>

#include "api/ollama.h"

/* Encodes messages by the chat template. */
static int render(struct err *e, struct text_ids *out, const struct api_model *m, const struct text_message *msg,
                  size_t n, enum text_chat_end end)
{
    *out = (struct text_ids){0};
    return text_chat(e, m->text, out, msg, n, end);
}

static bool begins_with(const struct text_ids *v, const struct text_ids *with)
{
    return with->n <= v->n && (!with->n || !memcmp(v->ids, with->ids, with->n * sizeof *with->ids));
}

static int add(struct err *e, json_t *list, const uint32_t *ids, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (json_array_append_new(list, json_integer(ids[i])))
            return err_nomem(e, "a prompt", n * sizeof *ids);
    return 0;
}

/* Adds the client's ids after checking them. */
static int add_context(struct err *e, json_t *list, const struct api_model *m, const json_t *context)
{
    size_t n = json_array_size(context);
    if (n > WIRE_IDS_MAX)
        return err_set(e, ERR_NO, "context: too many ids: %zu, the limit is %u", n, WIRE_IDS_MAX);
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(context, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || (uint64_t)id >= m->vocab)
            return err_set(e, ERR_NO, "context[%zu]: expected a token id below %" PRIu64, i, m->vocab);
        if (json_array_append(list, (json_t *)v))
            return err_nomem(e, "a prompt", n);
    }
    return 0;
}

/* How many of the n ids that close an answer already end the conversation: all of a turn that ended, the first if the
 * answer ended with it, none if a limit ended it. */
static size_t closed(const json_t *list, const uint32_t *ids, size_t n)
{
    size_t size = json_array_size(list);
    for (size_t k = n < size ? n : size; k; k--) {
        size_t i = 0;
        while (i < k && json_integer_value(json_array_get(list, size - k + i)) == ids[i])
            i++;
        if (i == k)
            return k;
    }
    return 0;
}

/*
 * Renders a conversation of two messages, open and closed, to get what the template puts after an answer, and one with
 * a third message to get what it puts before a user message that is not the first. So a begin token or the model's own
 * system message, which only begin a conversation, do not appear twice.
 */
static int add_turn(struct err *e, json_t *list, const struct api_model *m, const char *system, size_t n_system,
                    const char *prompt, size_t n_prompt)
{
    const struct text_message msg[] = {
        {"user", "a", 1},
        {"assistant", "b", 1},
        {"user", prompt, n_prompt},
    };
    const struct text_message with[] = {
        msg[0],
        msg[1],
        {"system", system, n_system},
        msg[2],
    };
    struct text_ids open, shut = {0}, all = {0};
    int rc = render(e, &open, m, msg, 2, TEXT_CHAT_OPEN);
    rc = rc ? rc : render(e, &shut, m, msg, 2, TEXT_CHAT_CLOSED);
    rc = rc ? rc : render(e, &all, m, n_system ? with : msg, n_system ? 4 : 3, TEXT_CHAT_ANSWER);
    if (!rc && (!begins_with(&shut, &open) || !begins_with(&all, &shut)))
        rc = err_set(e, ERR_NO, "context: the model's chat template cannot continue a conversation; use /api/chat");
    if (!rc) {
        size_t n = shut.n - open.n, have = closed(list, shut.ids + open.n, n);
        rc = add(e, list, shut.ids + open.n + have, n - have);
    }
    rc = rc ? rc : add(e, list, all.ids + shut.n, all.n - shut.n);
    text_ids_free(&open);
    text_ids_free(&shut);
    text_ids_free(&all);
    return rc;
}

/* Without a chat template the prompt is appended unchanged. */
static int add_plain(struct err *e, json_t *list, const struct api_model *m, const char *prompt, size_t n_prompt)
{
    struct text_ids ids = {0};
    int rc = text_encode(e, m->text, &ids, prompt, n_prompt, 0);
    rc = rc ? rc : add(e, list, ids.ids, ids.n);
    text_ids_free(&ids);
    return rc;
}

int ollama_continue(struct err *e, json_t **out, const struct api_model *m, const json_t *context, const char *system,
                    size_t n_system, const char *prompt, size_t n_prompt)
{
    json_t *list = json_array();
    *out = NULL;
    int rc = list ? add_context(e, list, m, context) : err_nomem(e, "a prompt", 0);
    if (!rc && m->chat_template)
        rc = add_turn(e, list, m, system, n_system, prompt, n_prompt);
    else if (!rc)
        rc = add_plain(e, list, m, prompt, n_prompt);
    if (rc)
        json_decref(list);
    else
        *out = list;
    return rc;
}
