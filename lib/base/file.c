#include "base/file.h"

#include <errno.h>
#include <unistd.h>

bool file_read_at(int fd, void *p, size_t n, off_t at)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(fd, (char *)p + got, n - got, at + (off_t)got);
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return false;
        got += (size_t)k;
    }
    return true;
}
