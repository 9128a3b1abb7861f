/*
 * The chat templates that are known: their rendering by chat.c was compared with Jinja's, byte by byte, in 720 chats
 * (with and without a system message, turns in and out of order, white space, reasoning, other roles). To add one, run
 *
 *     scripts/check-chat-template MODEL.gguf TEMPLATE.jinja=NAME
 *
 * which prints the row if the template is rendered right. A template that is not needs an interpreter of Jinja.
 */
#include <sodium.h>
#include <string.h>

#include "text/text_private.h"

static const struct {
    const char *digest, *name;
} known[] = {
    /* published with models, or collected from files of many models (ChatML, Mistral Instruct) */
    {"ef6abebff17c2213b1d84f6eef98b0f7", "ChatML"},
    {"5a43c3a0e10f156748f55e0952f548cf", "ChatML"},
    {"5063d8b598926d15f263bc6b5cfdecd1", "ChatML"},
    {"fa178aa9246d7297e2fc92fcf9661350", "ChatML"},
    {"fea45b5bdb1d4f97cb0aa0c6ccc51fd8", "ChatML"},
    {"68e4532c28d3abf7d09158e4e9dcb49b", "ChatML"},
    {"912fab310fc02b4b91a0fb0c104fbb99", "Gemma 2 Instruct"},
    {"0d4815757a58c586140552593b368cdd", "Gemma 3 Instruct"},
    {"8e6d573bea6e0d2b165cc4c52d824645", "Llama 3 Instruct"},
    {"b570e67434b2c190089dbcf9fce89c88", "Llama 3.1 and 3.3 Instruct"},
    {"e56920297a8e00b8f4b8c925eb95f6b6", "Llama 3.2 Instruct"},
    {"f9e5547bd20ec4d1e9e2c31a115bfa89", "MiMo-VL"},
    {"c49f5f8f6c73734604c6ee21f61cde9f", "MiniCPM5"},
    {"32dc35fed82b68fea96256fdcc95acb4", "Mistral Instruct"},
    {"18bd48c0125dc508e9503dbc507f3009", "Mistral Instruct"},
    {"5fb17200cde5169b1b7e450b4f2f0de3", "Mistral Nemo Instruct 2407"},
    {"d1bd64247b90dd7ca8300718b755d323", "Qwen2.5 Instruct"},
    {"fd18fd10822a02d77cd7e2aaf3786e0d", "Qwen3"},
    {"10deff9cbf67494c687db783aabee114", "SmolLM2 Instruct"},
    /* of this project: the plain form of each kind, for files that have their template from here */
    {"a7554979c1b773c55571649d815280fb", "chatml"},
    {"4ea7b6fc991311e1d7d999ad34709d5e", "chatml, developer"},
    {"1206b39642b67e6a8b0fc42542b394c9", "gemma2"},
    {"df128c524de1c37e57a06483f22cee14", "gemma3"},
    {"b5ab85b09fe68f66c7fc929ba992feac", "llama3"},
    {"b79a4283f7f85e6501972ff39171499c", "llama31"},
    {"eaf27020c3d1f919f38614c8f0dd9cbe", "mistral1"},
    {"20556ed432e5aa7ce7ec83daecdfd8a2", "mistral2"},
    {"ff258cbb8443a2e12975f55af3967bfe", "mistral3"},
    {"e0065e72d684a2d5dafe7dfde9e43eeb", "nemo"},
    {"709297841186b635ada392a3bdf89173", "qwen"},
    {"1ad7bcbd74f333baa25961991cdd4975", "think"},
};

void text_chat_digest(char out[TEXT_CHAT_DIGEST], const char *template, size_t n)
{
    uint8_t sum[16];
    n -= n > 0 && template[n - 1] == '\n';
    crypto_generichash(sum, sizeof sum, (const uint8_t *)template, n, NULL, 0);
    sodium_bin2hex(out, TEXT_CHAT_DIGEST, sum, sizeof sum);
}

const char *text_chat_known(const char *digest)
{
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].digest, digest) == 0)
            return known[i].name;
    return NULL;
}
