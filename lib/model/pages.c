/* Page sizes of a model's mapping. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"

static uint64_t kib_of(const char *line, const char *field)
{
    size_t n = strlen(field);
    return strncmp(line, field, n) == 0 ? strtoull(line + n, NULL, 10) : 0;
}

uint64_t model_huge_bytes(const struct model *m)
{
    FILE *f = fopen("/proc/self/smaps", "re");
    if (!f)
        return 0;
    char line[512];
    uint64_t kib = 0, from = (uintptr_t)m->map, to = from + m->map_bytes;
    bool in = false, whole = true;
    while (fgets(line, sizeof line, f)) {
        uint64_t lo, hi;
        if (whole && sscanf(line, "%" SCNx64 "-%" SCNx64, &lo, &hi) == 2)
            in = lo < to && hi > from;
        else if (whole && in)
            kib += kib_of(line, "FilePmdMapped:") + kib_of(line, "AnonHugePages:") + kib_of(line, "ShmemPmdMapped:");
        /* A mapping's path may be longer than the buffer: the rest of such a line is skipped. */
        whole = strchr(line, '\n') != NULL;
    }
    fclose(f);
    return kib * 1024;
}
