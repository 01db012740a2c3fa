// Creates threads until the kernel refuses, and prints their number.
#include "attack.h"
#include <pthread.h>

static void *wait_for_ever(void *unused)
{
    for (;;)
        pause();
    return unused;
}

int main(void)
{
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 16);
    int threads = 0;
    pthread_t thread;
    while (threads < 100000 && pthread_create(&thread, &small, wait_for_ever, NULL) == 0)
        threads++;
    printf("%d\n", threads);
    return 0;
}
