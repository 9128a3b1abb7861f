/*
 * Renders chats by the style of any template, known or not, for scripts/check-chat-template.
 *
 *   chat_template MODEL.gguf TEMPLATE < lines
 *
 * A line is {"messages": [{"role", "content"}], "answer": true}. The answer to each is a line: the text as a JSON
 * string, or null if the chat is refused. The first line of the output is the digest of the template and the name under
 * which it is known, or null.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "text/text_private.h"

#define MESSAGES_MAX 16

static char *read_all(const char *path, size_t *n)
{
    FILE *f = fopen(path, "rb");
    char *s = malloc(1 << 20);
    *n = f && s ? fread(s, 1, 1 << 20, f) : 0;
    if (f)
        fclose(f);
    return s;
}

static void render(const struct text *t, json_t *chat)
{
    struct text_message m[MESSAGES_MAX];
    struct err e;
    size_t n = 0, n_out, i;
    char *out;
    json_t *o;
    json_array_foreach(json_object_get(chat, "messages"), i, o)
    {
        const char *s = json_string_value(json_object_get(o, "content"));
        if (n < MESSAGES_MAX)
            m[n++] = (struct text_message){json_string_value(json_object_get(o, "role")), s, strlen(s)};
    }
    bool answer = json_is_true(json_object_get(chat, "answer"));
    json_t *text = text_chat_render(&e, t, &out, &n_out, m, n, answer ? TEXT_CHAT_ANSWER : TEXT_CHAT_CLOSED)
                       ? json_null()
                       : json_stringn(out, n_out);
    json_dumpf(text, stdout, JSON_ENCODE_ANY);
    putchar('\n');
    json_decref(text);
}

int main(int argc, char **argv)
{
    struct err e = {0};
    struct gguf *g = NULL;
    struct text *t = NULL;
    size_t n;
    if (argc != 3)
        return err_set(&e, ERR_USAGE, "chat_template MODEL.gguf TEMPLATE"), cli_fail("chat_template", &e);
    char *template = read_all(argv[2], &n);
    int rc = gguf_open(&e, &g, argv[1]);
    rc = rc ? rc : text_open(&e, &t, g);
    if (!rc) {
        text_chat_style_free(&t->chat);
        memset(&t->chat, 0, sizeof t->chat);
        rc = text_chat_style_of(&e, &t->chat, template, n);
    }
    if (rc)
        return cli_fail("chat_template", &e);
    text_chat_digest(t->chat.digest, template, n);
    if (t->chat.kind == CHAT_UNKNOWN)
        t->chat.head = strdup("");
    const char *name = text_chat_known(t->chat.digest);
    printf("{\"digest\": \"%s\", \"known\": %s%s%s}\n", t->chat.digest, name ? "\"" : "", name ? name : "null",
           name ? "\"" : "");
    for (json_t *o; (o = json_loadf(stdin, JSON_DISABLE_EOF_CHECK, NULL)); json_decref(o))
        render(t, o);
    text_free(t);
    gguf_free(g);
    free(template);
    return 0;
}
