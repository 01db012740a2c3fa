// Listens on port 8080, on an abstract socket and at the paths in its arguments, creates the file `listening`, and waits.
#include "attack.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

static void listens(const void *address, socklen_t length)
{
    int end = socket(((const struct sockaddr *)address)->sa_family, SOCK_STREAM, 0);
    if (bind(end, address, length) || listen(end, 1))
        die("listen");
}

int main(int count, char **arguments)
{
    struct sockaddr_in port = {
        .sin_family = AF_INET, .sin_port = htons(8080), .sin_addr.s_addr = htonl(INADDR_ANY)};
    listens(&port, sizeof port);
    struct sockaddr_un name = {.sun_family = AF_UNIX, .sun_path = "\0neighbour"};
    listens(&name, offsetof(struct sockaddr_un, sun_path) + 1 + strlen("neighbour"));
    for (int index = 1; index < count; index++) {
        struct sockaddr_un path = {.sun_family = AF_UNIX};
        strncpy(path.sun_path, arguments[index], sizeof path.sun_path - 1);
        listens(&path, sizeof path);
    }
    close(open("listening", O_CREAT | O_WRONLY, 0644));
    for (;;)
        pause();
}
