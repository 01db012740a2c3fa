// Tries to type into the terminal that the daemon was perhaps started from.
#include "attack.h"
#include <sys/ioctl.h>

int main(void)
{
    char what[80], letter = 'x';
    static const struct {
        const char *name;
        unsigned long request;
    } requests[] = {{"TIOCSTI", 0x5412}, {"TIOCLINUX", 0x541c}};
    for (int file = 0; file < 3; file++)
        for (int request = 0; request < 2; request++) {
            snprintf(what, sizeof what, "%s on %d", requests[request].name, file);
            answer(what, CALL(ioctl, file, requests[request].request, &letter));
            snprintf(what, sizeof what, "%s on %d, more bits", requests[request].name, file);
            answer(what, CALL(ioctl, file, 0x100000000 | requests[request].request, &letter));
        }
    answer("open /dev/tty", open("/dev/tty", O_RDWR));
    answer("open /dev/console", open("/dev/console", O_RDWR));
    answer("open /dev/ptmx", open("/dev/ptmx", O_RDWR));
    answer("leader of a session", getsid(0) == getpid() ? 0 : -1);
    return 0;
}
