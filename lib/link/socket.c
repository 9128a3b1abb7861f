#include "link/socket.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/socket.h"

int socket_address(struct err *e, struct sockaddr_un *out, const char *url)
{
    memset(out, 0, sizeof *out);
    out->sun_family = AF_UNIX;
    if (strncmp(url, "unix:", 5) || !url[5])
        return err_set(e, ERR_USAGE, "'%s': the address of a socket is unix:PATH", url);
    size_t n = strlen(url + 5);
    if (n >= sizeof out->sun_path)
        return err_set(e, ERR_USAGE, "'%s': the path of a socket has at most %zu bytes", url, sizeof out->sun_path - 1);
    memcpy(out->sun_path, url + 5, n);
    return 0;
}

int socket_make_way(struct err *e, const char *path, bool *is_socket)
{
    struct stat st;
    *is_socket = false;
    if (lstat(path, &st))
        return 0; /* if the path is not accessible, bind fails and reports why */
    if (!S_ISSOCK(st.st_mode))
        return err_set(e, ERR_NO, "%s: the file is not a socket", path);
    *is_socket = true;
    if (socket_is_listening(path))
        return err_set(e, ERR_NO, "%s: address in use: another program listens on it", path);
    return unlink(path) ? err_sys(e, "%s", path) : 0;
}
