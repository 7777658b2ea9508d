/* The CPU runner: loads one library, and calls its entry in disposable children on buffers that the harness owns.
 *
 *     runner PARENT MEMORY LIBRARY ENTRY     commands on standard input, replies on standard output, in fixed-size records
 *     runner --probe                         prints what this machine offers
 *
 * This process ("the zygote") does not even load a candidate's library, since loading may run code: its clock and its word can
 * be trusted. Each command forks a child that maps only the buffer sets it was given, loads the library under a filter of its
 * own, faults everything in, gives up its last rights, reports ready, and waits. Before the first command one child loads the
 * library and ends. Trusted code is loaded here, once. The zygote reads the clock, says go, and reads it again when
 * the child begins to exit: as its tracer it is told before the kernel takes the child's memory apart, which would cost more
 * than a small call, and the child cannot forge it.
 */
#define _GNU_SOURCE
#include "trace.h"

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define MAGIC 0x65766f2d6c322d31LL
#define LOAD_S 10LL

static long long now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static int read_all(int from, void *to, size_t n)
{
    for (char *p = to; n;) {
        ssize_t got = read(from, p, n);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return -1;
        if (got > 0)
            p += got, n -= (size_t)got;
    }
    return 0;
}

/* Returns 0, -1 when the other side is gone, 1 when time is up. */
static int read_within(int from, void *to, size_t n, long long most_ns)
{
    for (long long deadline = now_ns() + most_ns, left = most_ns; n; left = deadline - now_ns()) {
        struct pollfd word = {.fd = from, .events = POLLIN};
        struct timespec t = {left / 1000000000LL, left % 1000000000LL};
        if (left <= 0)
            return 1;
        if (ppoll(&word, 1, &t, NULL) <= 0)
            continue;
        ssize_t got = read(from, to, n);
        if (got <= 0 && !(got < 0 && errno == EINTR))
            return -1;
        if (got > 0)
            to = (char *)to + got, n -= (size_t)got;
    }
    return 0;
}

static void answer(struct reply *r)
{
    r->magic = MAGIC;
    /* One record is below PIPE_BUF, so it is written whole or not at all; a parent that is gone ends this process. */
    if (write(1, r, sizeof *r) != (ssize_t)sizeof *r)
        _exit(3);
}

static void answer_text(enum kind kind, const char *what, const char *detail)
{
    struct reply r = {.kind = kind};
    snprintf(r.text, sizeof r.text, "%s%s%s", what, detail ? ": " : "", detail ? detail : "");
    answer(&r);
}

static _Noreturn void broken(const char *what)
{
    answer_text(BROKEN, what, strerror(errno));
    _exit(4);
}

/* Waits for the child's end; sets the time at which it began to exit, and kills it at the deadline. */
static int await_end(pid_t pid, long long begin, long long wall_ns, struct reply *r, int *status)
{
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    long long end = 0;
    int timed_out = 0;
    for (;;) {
        struct rusage usage;
        pid_t got = wait4(pid, status, __WALL | (timed_out ? 0 : WNOHANG), &usage);
        long long now = now_ns();
        if (got < 0 && errno != EINTR)
            broken("waiting for the child failed");
        if (got == pid) {
            if (WIFSTOPPED(*status)) {
                if (handle_stop(pid, *status, r) && !end)
                    end = now;
                continue;
            }
            r->ns = (end ? end : now) - begin;
            r->peak_kb = usage.ru_maxrss;
            return timed_out;
        }
        long long left = begin + wall_ns - now;
        if (got == 0 && left <= 0 && !end) {
            kill(pid, SIGKILL);
            timed_out = 1;
        } else if (got == 0) {
            struct timespec t = {0, 1000000};
            if (!end)
                t.tv_sec = left / 1000000000LL, t.tv_nsec = left % 1000000000LL;
            sigtimedwait(&child_signal, NULL, &t);
        }
    }
}

static void conclude(struct reply *r, int status, int timed_out, int code)
{
    if (timed_out && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
        r->kind = TIMED_OUT;
    } else if (WIFSIGNALED(status)) {
        r->kind = SIGNALLED;
        r->signal = WTERMSIG(status);
    } else {
        r->exit_code = WEXITSTATUS(status);
        r->kind = r->exit_code == code ? FINISHED : EXITED;
    }
    answer(r);
}

/* A code that a kernel does not meet by calling exit with a plain value. It can be read from the child's memory by one that
 * searches for it: what proves a call to be done is that its outputs hold no poison. */
static int draw_code(void)
{
    unsigned char byte = 0;
    (void)!syscall(SYS_getrandom, &byte, 1UL, 0U);
    return 32 + byte % 96;
}

static void run(const struct command *c)
{
    int go[2], ready[2], status, code = draw_code();
    if (pipe2(go, O_CLOEXEC) || pipe2(ready, O_CLOEXEC))
        broken("no pipe");
    pid_t pid = fork();
    if (pid < 0)
        broken("no process");
    if (pid == 0) {
        close(go[1]), close(ready[0]);
        child(c, go[0], ready[1], code);
    }
    close(go[0]), close(ready[1]);
    struct reply r = {.system_call = UNKNOWN, .address = UNKNOWN};
    struct report report = {0};
    /* The first word comes from our own code alone; from there on the library may have run what it brings. */
    int mute = read_all(ready[0], &report, sizeof report), loading = 0;
    if (!mute && !report.error && !setup.trusted) {
        mute = read_within(ready[0], &report, sizeof report, LOAD_S * 1000000000LL);
        loading = mute;
    }
    if (loading > 0)
        kill(pid, SIGKILL);
    /* Only now: a traced child that crashed before it was ready would stop and wait for us while we wait for its word. */
    if (traced && !mute && ptrace(PTRACE_SEIZE, pid, NULL, (void *)(PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL)))
        traced = 0;
    r.powers = traced ? TRACED : 0;
    long long begin = now_ns();
    if (!mute && !report.error && write(go[1], "g", 1) != 1)
        mute = 1;
    int timed_out = await_end(pid, begin, mute || report.error ? 5000000000LL : c->wall_ns, &r, &status);
    close(go[1]), close(ready[0]);
    if (report.error)
        answer_text(BROKEN, report.step, strerror(report.error));
    else if (loading)
        conclude(&r, status, timed_out || loading > 0, code);
    else if (mute)
        answer_text(BROKEN, "the child ended before its call", WIFSIGNALED(status) ? strsignal(WTERMSIG(status)) : NULL);
    else
        conclude(&r, status, timed_out, code);
}

static void close_others(int keep)
{
    int failed = 0;
    if (keep > 3)
        failed |= (int)syscall(SYS_close_range, 3U, (unsigned)keep - 1, 0U);
    failed |= (int)syscall(SYS_close_range, (unsigned)keep + 1, ~0U, 0U);
    for (int i = 3, n = failed ? (int)sysconf(_SC_OPEN_MAX) : 0; i < n; i++)
        if (i != keep)
            close(i);
}

static void read_setup(void)
{
    long long magic;
    if (read_all(0, &magic, sizeof magic) || magic != MAGIC || read_all(0, &setup, sizeof setup))
        _exit(2);
    if (setup.n_operands > MOST_BUFFERS || setup.n_shared > MOST_BUFFERS || setup.n_sizes > MOST_BUFFERS)
        _exit(2);
    if (read_all(0, operands, (size_t)setup.n_operands * sizeof *operands) ||
        read_all(0, shared, (size_t)setup.n_shared * sizeof *shared) ||
        read_all(0, sizes, (size_t)setup.n_sizes * sizeof *sizes))
        _exit(2);
}

/* Addresses are settled here, once: reserved without access, so that what a child does not map stays a guard. */
static void reserve(void)
{
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
    base = mmap(NULL, (size_t)setup.n_bytes, PROT_NONE, flags, -1, 0);
    if (base == MAP_FAILED)
        broken("no address space for the buffers");
    long long each = setup.n_operands + setup.n_shared;
    pointers = calloc((size_t)((setup.n_sets + 1) * each + 1), sizeof *pointers);
    if (!pointers)
        broken("no memory");
    for (long long set = 0; set <= setup.n_sets; set++)
        for (long long i = 0; i < each; i++) {
            const struct region *r = i < setup.n_operands ? &operands[i] : &shared[i - setup.n_operands];
            long long start = i < setup.n_operands ? setup.sets_at + set * setup.set_bytes : 0;
            pointers_of(set)[i] = base + start + r->offset + r->data;
        }
}

static void limit_zygote(void)
{
    evo_limit(RLIMIT_CORE, 0, 0);
    evo_limit(RLIMIT_FSIZE, 0, 0);
    evo_limit(RLIMIT_NOFILE, 64, 64);
    evo_limit(RLIMIT_STACK, STACK_BYTES, STACK_BYTES);
    if (!setup.trusted)
        evo_limit(RLIMIT_AS, (rlim_t)setup.n_bytes + SPARE_BYTES, (rlim_t)setup.n_bytes + SPARE_BYTES);
}

/* Stretches the stack's mapping, so that children can have its pages made at once instead of one fault each. */
static __attribute__((noinline)) void stretch_stack(void)
{
    volatile char space[WARM_STACK_BYTES + 16384];
    for (size_t i = sizeof space; i >= 4096; i -= 4096)
        space[i - 1] = 0;
}

static _Noreturn void load_and_end(int said)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    close(0), close(1), close(memory);
    limit_child(LOAD_S + 1);
    const char *why = confined && evo_confine_loading(said) ? "the loader's filter is refused" : load();
    char text[sizeof ((struct reply *)0)->text] = "";
    snprintf(text, sizeof text, "%s", why ? why : "");
    _exit(write(said, text, sizeof text) != (ssize_t)sizeof text);
}

/* Answers and ends this process unless the library loads in a child: what it cannot do there is the library's fault. */
static void try_loading(void)
{
    int said[2], status;
    if (pipe2(said, O_CLOEXEC))
        broken("no pipe");
    pid_t pid = fork();
    if (pid < 0)
        broken("no process");
    if (pid == 0) {
        close(said[0]);
        load_and_end(said[1]);
    }
    close(said[1]);
    struct reply r = {.kind = LOAD_FAILED};
    int late = read_within(said[0], r.text, sizeof r.text, LOAD_S * 1000000000LL);
    close(said[0]);
    if (await_end(pid, now_ns(), late > 0 ? 0 : 1000000000LL, &r, &status))
        late = 1;
    if (!late && !r.text[0])
        return;
    r.text[sizeof r.text - 1] = 0;
    if (late) {
        r.text[0] = 0;
        r.kind = late > 0 ? TIMED_OUT : WIFSIGNALED(status) ? SIGNALLED : EXITED;
        r.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }
    answer(&r);
    _exit(0);
}

static void load_or_try(void)
{
    answer_text(LOADING, "loading", NULL);
    if (!setup.trusted) {
        try_loading();
        return;
    }
    const char *why = load();
    if (why) {
        answer_text(LOAD_FAILED, why, NULL);
        _exit(0);
    }
}

static void serve(void)
{
    struct command c;
    while (read_all(0, &c, sizeof c) == 0) {
        int sane = c.magic == MAGIC && c.first >= 0 && c.n_calls > 0 && c.n_calls <= setup.n_sets - c.first &&
                   c.wall_ns > 0 && c.cpu_s > 0;
        if (!sane)
            broken("a command makes no sense");
        run(&c);
    }
}

static int probe(void)
{
    int seccomp = SECCOMP_RET_KILL_PROCESS, status = 0;
    seccomp = syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &seccomp) == 0;
#ifndef EVO_AUDIT_ARCH
    seccomp = 0;
#endif
    long version = evo_landlock_version();
    pid_t pid = fork();
    if (pid == 0) {
        pause();
        _exit(0);
    }
    int can_trace = pid > 0 && ptrace(PTRACE_SEIZE, pid, NULL, NULL) == 0;
    if (pid > 0)
        kill(pid, SIGKILL), waitpid(pid, &status, 0);
    printf("seccomp=%d\nlandlock=%ld\ntraced=%d\n", seccomp, version < 0 ? 0 : version, can_trace);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 2 && !strcmp(argv[1], "--probe"))
        return probe();
    if (argc != 5)
        return 2;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != atoi(argv[1]))
        return 3;
    if (getsid(0) != getpid() && setsid() < 0)
        return 3;
    memory = atoi(argv[2]);
    library = argv[3];
    symbol = argv[4];
    zygote = getpid();
    page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    close_others(memory);
    read_setup();
    reserve();
    limit_zygote();
    stretch_stack();
    struct reply r = {.kind = READY, .address = (long long)(uintptr_t)base, .ns = (long long)(uintptr_t)__builtin_frame_address(0)};
    cpu_set_t cores;
    CPU_ZERO(&cores);
    CPU_SET((size_t)setup.core, &cores);
    if (sched_setaffinity(0, sizeof cores, &cores) == 0)
        r.powers |= PINNED;
    sigset_t child_signal;
    sigemptyset(&child_signal);
    sigaddset(&child_signal, SIGCHLD);
    sigprocmask(SIG_BLOCK, &child_signal, NULL);
    signal(SIGPIPE, SIG_IGN);
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0))
        broken("privileges cannot be given up");
    if (!setup.trusted) {
        r.landlock = evo_landlock(library);
        confined = evo_confine_zygote() == 0;
        r.powers |= confined ? SECCOMP : 0;
    }
    traced = 1;
    load_or_try();
    answer(&r);
    serve();
    _exit(0);
}
