/* Fuzzes frames from JSON lines. A line that decodes must encode to JSON that decodes to the same frame. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "wire/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n);

static void check(bool is, const char *what)
{
    if (is)
        return;
    (void)!write(STDERR_FILENO, what, strlen(what));
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *p, size_t n)
{
    struct err e = {0};
    struct wire_frame f, g;
    struct wire_arena *a = wire_arena_new();
    uint8_t *data, *data_again, *once, *twice;
    size_t n_once, n_twice;
    char *line;
    if (!wire_from_json(&e, &f, a, &data, (const char *)p, n)) {
        check(!wire_encode(&e, &once, &n_once, &f), "a decoded frame does not encode\n");
        check(!wire_to_json(&e, &line, &f, data, true), "a decoded frame has no JSON\n");
        check(!wire_from_json(&e, &g, a, &data_again, line, strlen(line)), "the JSON of a frame does not decode\n");
        check(!wire_encode(&e, &twice, &n_twice, &g), "a frame does not encode a second time\n");
        check(n_once == n_twice && !memcmp(once, twice, n_once), "two encodings differ\n");
        check(f.kind != WIRE_BLK || !memcmp(data, data_again, f.blk.n_data), "the payload differs\n");
        free(line);
        wire_to_json(&e, &line, &f, data, false);
        free(line);
        free(once);
        free(twice);
        free(data);
        free(data_again);
    }
    wire_arena_free(a);
    return 0;
}
