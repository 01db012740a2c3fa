// Computes in children that nobody waits for, one after the other, for ever: what they used is added
// to nobody's time.
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
