/* /openapi.json: serves the file lib/api/openapi.json, embedded at build time. */
#include "api/openai.h"

__asm__(".pushsection .rodata\n"
        ".global openapi_json\n"
        ".type openapi_json, @object\n"
        "openapi_json:\n"
        ".incbin \"lib/api/openapi.json\"\n"
        "1:\n"
        ".size openapi_json, . - openapi_json\n"
        ".balign 8\n"
        ".global openapi_json_bytes\n"
        "openapi_json_bytes:\n"
        ".quad 1b - openapi_json\n"
        ".popsection\n");

extern const char openapi_json[];
extern const uint64_t openapi_json_bytes;

void openai_spec(struct api *a, struct http_request *r)
{
    (void)a;
    http_reply(r, 200, "application/json", openapi_json, (size_t)openapi_json_bytes);
}
