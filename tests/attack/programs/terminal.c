// Tries to inject input into a terminal from which the daemon may have been started.
#include "attack.h"
#include <sys/ioctl.h>

int main(void)
{
    char attempt[80], letter = 'x';
    static const struct {
        const char *name;
        unsigned long request;
    } requests[] = {{"TIOCSTI", 0x5412}, {"TIOCLINUX", 0x541c}};
    for (int file = 0; file < 3; file++)
        for (int request = 0; request < 2; request++) {
            snprintf(attempt, sizeof attempt, "%s on %d", requests[request].name, file);
            answer(attempt, CALL(ioctl, file, requests[request].request, &letter));
            snprintf(attempt, sizeof attempt, "%s on %d, more bits", requests[request].name, file);
            answer(attempt, CALL(ioctl, file, 0x100000000 | requests[request].request, &letter));
        }
    answer("open /dev/tty", open("/dev/tty", O_RDWR));
    answer("open /dev/console", open("/dev/console", O_RDWR));
    answer("open /dev/ptmx", open("/dev/ptmx", O_RDWR));
    // The leader of the session is outside, and has no number here. At L1, each command has a session of its own.
    answer("session of the run", getsid(0) == 0 || getsid(0) == getpid() ? 0 : -1);
    return 0;
}
