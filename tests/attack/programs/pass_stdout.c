// Passes its standard output, a pipe, to another run. `pass_stdout give SOCKET` sends the pipe and exits.
// `pass_stdout take SOCKET` receives it, writes to it as long as it can, and keeps it open.
#include "attack.h"
#include <sys/un.h>

int main(int count, char **arguments)
{
    if (count != 3)
        return 64;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    strncpy(address.sun_path, arguments[2], sizeof address.sun_path - 1);
    int end = socket(AF_UNIX, SOCK_STREAM, 0);
    char byte = 'x';
    union {
        struct cmsghdr header;
        char bytes[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct iovec data = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &data, .msg_iovlen = 1, .msg_control = &control, .msg_controllen = sizeof control};

    if (!strcmp(arguments[1], "take")) {
        unlink(arguments[2]);
        if (bind(end, (void *)&address, sizeof address) || listen(end, 1))
            die("listen");
        int giver = accept(end, NULL, NULL);
        if (recvmsg(giver, &message, 0) != 1 || control.header.cmsg_type != SCM_RIGHTS)
            die("recvmsg");
        int pipe;
        memcpy(&pipe, CMSG_DATA(&control.header), sizeof pipe);
        signal(SIGPIPE, SIG_IGN);
        for (;;) {
            if (write(pipe, "from another run\n", 17) < 0)
                usleep(100000);
            else
                usleep(1000);
        }
    }

    control.header = (struct cmsghdr){
        .cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    memcpy(CMSG_DATA(&control.header), &(int){STDOUT_FILENO}, sizeof(int));
    while (connect(end, (void *)&address, sizeof address))
        usleep(1000); // until the other run listens
    if (sendmsg(end, &message, 0) != 1)
        die("sendmsg");
    return 0;
}
