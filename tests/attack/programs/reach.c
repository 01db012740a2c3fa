// Tries to connect to targets, each within a second: `reach tcp ADDRESS PORT udp ADDRESS PORT unix PATH - abstract NAME -`.
#include "attack.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

static long try_target(const char *kind, const char *target, const char *port)
{
    struct sockaddr_storage storage = {0};
    socklen_t length;
    int internet = !strcmp(kind, "tcp") || !strcmp(kind, "udp");
    if (!internet) {
        struct sockaddr_un *name = (void *)&storage;
        int abstract = !strcmp(kind, "abstract");
        name->sun_family = AF_UNIX;
        strncpy(name->sun_path + abstract, target, sizeof name->sun_path - 1 - abstract);
        length = abstract ? offsetof(struct sockaddr_un, sun_path) + 1 + strlen(target) : sizeof *name;
    } else if (strchr(target, ':')) {
        struct sockaddr_in6 *six = (void *)&storage;
        six->sin6_family = AF_INET6;
        six->sin6_port = htons(atoi(port));
        inet_pton(AF_INET6, target, &six->sin6_addr);
        length = sizeof *six;
    } else {
        struct sockaddr_in *four = (void *)&storage;
        four->sin_family = AF_INET;
        four->sin_port = htons(atoi(port));
        inet_pton(AF_INET, target, &four->sin_addr);
        length = sizeof *four;
    }

    int datagram = !strcmp(kind, "udp");
    int end = socket(storage.ss_family, (datagram ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK, 0);
    if (end < 0)
        return -1;
    if (datagram)
        return sendto(end, "x", 1, 0, (void *)&storage, length) < 0 ? -1 : 0;
    return connect_promptly(end, &storage, length);
}

int main(int count, char **arguments)
{
    char attempt[160];
    for (int index = 1; index + 2 < count; index += 3) {
        snprintf(attempt, sizeof attempt, "%s %s %s", arguments[index], arguments[index + 1], arguments[index + 2]);
        answer(attempt, try_target(arguments[index], arguments[index + 1], arguments[index + 2]));
    }
    return 0;
}
