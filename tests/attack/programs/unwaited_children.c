// Computes for ever in child processes that it does not reap, one after the other, so that their CPU
// time is added to no parent's.
#include "attack.h"

int main(void)
{
    signal(SIGCHLD, SIG_IGN);
    for (;;) {
        if (fork() == 0) {
            while (clock() < CLOCKS_PER_SEC / 5)
                ;
            _exit(0);
        }
        wait(NULL); // until all have ended
    }
}
