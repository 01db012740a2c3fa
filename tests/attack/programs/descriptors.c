// Lists its open descriptors and their files.
#include "attack.h"

int main(void)
{
    for (int number = 0; number < 65536; number++) {
        char path[32], target[256];
        if (fcntl(number, F_GETFD) < 0)
            continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", number);
        ssize_t length = readlink(path, target, sizeof target);
        printf("%d %.*s\n", number, (int)(length > 0 ? length : 0), target);
    }
    return 0;
}
