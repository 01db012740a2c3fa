// Passes parts of its network to another run. `pass_network give SOCKET` listens on port 8080 of its loopback interface
// and sends sockets, its network namespace and its /proc. `pass_network take SOCKET PORT ADDRESS...` receives them and
// uses them to try the addresses, and PORT of the loopback interface.
#include "attack.h"
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/un.h>

#define SOCKETS 10
enum { NAMESPACE = SOCKETS, PROCESSES, COUNT };

static long reach(int end, const char *address, int port)
{
    struct sockaddr_in target = {.sin_family = AF_INET, .sin_port = htons(port)};
    inet_pton(AF_INET, address, &target.sin_addr);
    return connect_promptly(end, &target, sizeof target);
}

// The message that carries the descriptors.
static char byte = 'x';
static struct iovec data = {&byte, 1};
static union {
    struct cmsghdr header;
    char bytes[CMSG_SPACE(COUNT * sizeof(int))];
} control;
static struct msghdr message = {
    .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

static int give(int end, const struct sockaddr_un *address)
{
    struct sockaddr_in port = {
        .sin_family = AF_INET, .sin_port = htons(8080), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    if (bind(listener, (void *)&port, sizeof port) || listen(listener, 1))
        die("listen");

    int passed[COUNT];
    for (int index = 0; index < SOCKETS; index++)
        passed[index] = socket(AF_INET, (index % 2 ? SOCK_DGRAM : SOCK_STREAM) | SOCK_NONBLOCK, 0);
    passed[NAMESPACE] = open("/proc/self/ns/net", O_RDONLY);
    passed[PROCESSES] = open("/proc", O_RDONLY | O_DIRECTORY);
    control.header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof passed), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), passed, sizeof passed);

    while (connect(end, (void *)address, sizeof *address))
        usleep(1000); // until the other run listens
    if (sendmsg(end, &message, 0) != 1)
        die("sendmsg");
    return read(end, &byte, 1); // until the other run has made all attempts
}

static void take(int end, const struct sockaddr_un *address, int passed[COUNT])
{
    if (bind(end, (void *)address, sizeof *address) || listen(end, 1))
        die("listen");
    int giver = accept(end, NULL, NULL);
    if (recvmsg(giver, &message, 0) != 1 || control.header.cmsg_len != CMSG_LEN(COUNT * sizeof(int)))
        die("recvmsg");
    memcpy(passed, CMSG_DATA(&control.header), COUNT * sizeof(int));
}

int main(int count, char **arguments)
{
    if (count < 3)
        return 64;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, arguments[2], sizeof address.sun_path - 1);
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    if (!strcmp(arguments[1], "give"))
        return give(end, &address);

    int passed[COUNT];
    take(end, &address, passed);
    int daemon = atoi(arguments[3]), next = 2;
    answer("own socket to the giver's port", reach(socket(AF_INET, SOCK_STREAM, 0), "127.0.0.1", 8080));
    answer("passed socket to the daemon's port", reach(passed[0], "127.0.0.1", daemon));
    answer("passed socket to the giver's port", reach(passed[SOCKETS - 2], "127.0.0.1", 8080));
    for (int index = 4; index < count && next < SOCKETS - 2; index++) {
        char attempt[80];
        snprintf(attempt, sizeof attempt, "tcp %s", arguments[index]);
        answer(attempt, reach(passed[next++], arguments[index], 80));
        snprintf(attempt, sizeof attempt, "udp %s", arguments[index]);
        answer(attempt, reach(passed[next++], arguments[index], 53));
    }

    answer("enter the namespace", CALL(setns, passed[NAMESPACE], CLONE_NEWNET));
    answer("owner of the namespace", CALL(ioctl, passed[NAMESPACE], 0xb701, 0)); // NS_GET_USERNS
    static const char *const files[] = {"1/environ", "1/root", "1/ns/net"};
    for (size_t index = 0; index < sizeof files / sizeof *files; index++) {
        char attempt[80];
        snprintf(attempt, sizeof attempt, "%s of the giver", files[index]);
        answer(attempt, openat(passed[PROCESSES], files[index], O_RDONLY));
    }
    return 0;
}
