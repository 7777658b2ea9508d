/* Runs a compiler within limits: launcher PARENT CPU_S MEMORY_BYTES FILE_BYTES COMMAND ARGUMENT...
 *
 * The command dies with the process that asked for it, uses so much processor time and memory at the most, and writes no
 * file longer than it should.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

static void limit(int what, rlim_t value)
{
    struct rlimit both = {value, value};
    setrlimit(what, &both);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        return 125;
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    if (getppid() != (pid_t)atol(argv[1]))
        return 125;
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    limit(RLIMIT_CPU, strtoull(argv[2], 0, 10));
    limit(RLIMIT_AS, strtoull(argv[3], 0, 10));
    limit(RLIMIT_FSIZE, strtoull(argv[4], 0, 10));
    limit(RLIMIT_CORE, 0);
    execvp(argv[5], argv + 5);
    perror(argv[5]);
    return 126;
}
