// Becomes a daemon like daemon(7) describes: two forks, a new session, all descriptors closed, another directory. Prints
// a line and exits with 0.
#include "attack.h"

int main(void)
{
    int started[2];
    if (pipe(started))
        die("pipe");
    if (fork() == 0) {
        setsid();
        if (fork() != 0)
            _exit(0);
        setsid();
        if (chdir("/"))
            _exit(1);
        for (int signal = 1; signal < 32; signal++)
            sigaction(signal, &(struct sigaction){.sa_handler = SIG_IGN}, NULL);
        if (write(started[1], "x", 1) != 1)
            _exit(1);
        close_range(0, ~0U, 0);
        for (;;)
            pause();
    }
    close(started[1]);
    char byte;
    if (read(started[0], &byte, 1) != 1)
        die("the daemon did not start");
    puts("started");
    return 0;
}
