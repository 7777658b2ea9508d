/* What a tracer learns of its child: where it crashed, what it asked the system for, and when it begins to exit. */
#ifndef EVO_TRACE_H
#define EVO_TRACE_H

#include "child.h"

#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>

#ifndef PTRACE_O_EXITKILL
#define PTRACE_O_EXITKILL (1 << 20)
#endif

enum kind { LOADING = 1, READY, LOAD_FAILED, FINISHED, EXITED, SIGNALLED, TIMED_OUT, BROKEN };
enum power { SECCOMP = 1, TRACED = 2, PINNED = 4 };

struct reply {
    long long magic, kind, ns, signal, exit_code, peak_kb, address, system_call, powers, landlock;
    char text[944];
};

/* The number of the system call for which the candidate's filter killed the child; -1 when it cannot be told. */
static long long last_system_call(pid_t pid)
{
#if defined(__x86_64__) || defined(__aarch64__)
    struct user_regs_struct registers;
    struct iovec where = {&registers, sizeof registers};
    if (ptrace(PTRACE_GETREGSET, pid, (void *)1 /* NT_PRSTATUS */, &where) == 0)
#if defined(__x86_64__)
        return (long long)registers.orig_rax;
#else
        return (long long)registers.regs[8];
#endif
#endif
    (void)pid;
    return UNKNOWN;
}

/* The name of a call that a kernel may have tried; empty for one that is not listed. */
static const char *name_of(long long number)
{
#define CALL(name) {SYS_##name, #name}
    static const struct {
        long long number;
        const char *name;
    } calls[] = {
        CALL(brk),          CALL(clock_gettime), CALL(clock_nanosleep), CALL(clone),          CALL(close),
        CALL(connect),      CALL(execve),        CALL(exit),            CALL(futex),          CALL(getpid),
        CALL(getppid),      CALL(getrandom),    CALL(gettid),        CALL(kill),            CALL(mmap),           CALL(mprotect),
        CALL(munmap),       CALL(nanosleep),     CALL(newfstatat),      CALL(openat),         CALL(prctl),
        CALL(ptrace),       CALL(read),          CALL(rt_sigaction),    CALL(rt_sigprocmask), CALL(sched_setaffinity),
        CALL(sched_yield),  CALL(socket),        CALL(tgkill),          CALL(tkill),          CALL(write),
#ifdef SYS_clone3
        CALL(clone3),
#endif
#ifdef SYS_open
        CALL(open),         CALL(fork),          CALL(vfork),
#endif
    };
#undef CALL
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        if (calls[i].number == number)
            return calls[i].name;
    return "";
}

static int is_fatal(int signal)
{
    return signal == SIGSEGV || signal == SIGBUS || signal == SIGILL || signal == SIGFPE || signal == SIGABRT ||
           signal == SIGTRAP || signal == SIGSYS || signal == SIGXCPU;
}

/* Handles one stop of a traced child. Returns 1 when it has begun to exit. */
static int handle_stop(pid_t pid, int status, struct reply *r)
{
    int signal = WSTOPSIG(status), event = status >> 16, leaving = 0;
    if (event == PTRACE_EVENT_EXIT) {
        unsigned long message = 0;
        leaving = 1;
        ptrace(PTRACE_GETEVENTMSG, pid, NULL, &message);
        if (WIFSIGNALED((int)message) && WTERMSIG((int)message) == SIGSYS)
            r->system_call = last_system_call(pid);
        snprintf(r->text, sizeof r->text, "%s", name_of(r->system_call));
        signal = 0;
    } else if (event != 0) {
        signal = 0; /* a group stop: the wall limit ends it */
        if (event == PTRACE_EVENT_STOP) {
            ptrace(PTRACE_LISTEN, pid, NULL, NULL);
            return 0;
        }
    } else if (is_fatal(signal)) {
        siginfo_t info;
        if (ptrace(PTRACE_GETSIGINFO, pid, NULL, &info) == 0 && info.si_code > 0)
            r->address = info.si_code == SI_KERNEL ? NO_ADDRESS : (long long)(uintptr_t)info.si_addr;
    }
    ptrace(PTRACE_CONT, pid, NULL, (void *)(uintptr_t)signal);
    return leaving;
}

#endif
