// A FUSE server that reads every request and answers only the first: hang_fuse DIRECTORY. No signal ends a process that
// waits for an answer. The test runs it on the host. The server exits at the end of its standard input and unmounts.
#include "attack.h"
#include <linux/fuse.h>
#include <poll.h>
#include <sys/mount.h>

int main(int count, char **arguments)
{
    if (count != 2)
        return 64;
    int device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0)
        die("/dev/fuse");
    char options[128];
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", device);
    if (mount("hang", arguments[1], "fuse", MS_NOSUID | MS_NODEV, options))
        die("mount");
    puts("mounted");
    fflush(stdout);

    static char request[1 << 20];
    for (;;) {
        struct pollfd ready[] = {{.fd = device, .events = POLLIN}, {.fd = 0, .events = POLLIN}};
        if (poll(ready, 2, -1) < 0)
            die("poll");
        if (ready[1].revents)
            break;
        if (read(device, request, sizeof request) < 0)
            continue;
        struct fuse_in_header *header = (void *)request;
        if (header->opcode != FUSE_INIT)
            continue;
        struct {
            struct fuse_out_header header;
            struct fuse_init_out init;
        } reply = {
            .header = {.len = sizeof reply, .unique = header->unique},
            .init = {.major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION, .max_write = 4096},
        };
        if (write(device, &reply, sizeof reply) < 0)
            die("write");
    }

    // Closing the device ends the connection, and with it all waiting requests.
    close(device);
    umount2(arguments[1], MNT_DETACH);
    return 0;
}
