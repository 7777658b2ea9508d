/* The disposable half of the runner: what a forked child does before, during and after the calls. */
#ifndef EVO_CHILD_H
#define EVO_CHILD_H

#include "confine.h"

#include <dlfcn.h>
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

#define MOST_BUFFERS 64
#define MOST_SEGMENTS 16
#define STACK_BYTES (8L << 20)
#define WARM_STACK_BYTES (64L << 10)
#define UNKNOWN -1LL
#define NO_ADDRESS -2LL /* the processor names none: a misaligned vector access or a pointer that is no address */
#define SPARE_BYTES (1L << 30) /* address space beyond the buffers: the runner itself, libc, the library */

typedef void entry_function(void *const *buffers, const long long *sizes);

struct command {
    long long magic, first, n_calls, wall_ns, cpu_s;
};

struct region {
    long long offset, n_bytes, data;
};

static struct {
    long long core, trusted, n_sets, n_operands, n_shared, n_sizes, n_bytes, sets_at, set_bytes;
} setup;
static struct region operands[MOST_BUFFERS], shared[MOST_BUFFERS];
static long long sizes[MOST_BUFFERS];
static struct {
    char *start;
    size_t n_bytes;
} segments[MOST_SEGMENTS];
static int n_segments, memory, zygote, traced, confined;
static uintptr_t page_bytes;
static char *base;
static void **pointers;
static entry_function *entry;
static const char *library, *symbol;

struct report {
    int error;
    char step[60];
};

static _Noreturn void give_up(int ready, const char *step)
{
    struct report r = {.error = errno};
    strncpy(r.step, step, sizeof r.step - 1);
    (void)!write(ready, &r, sizeof r);
    _exit(5);
}

static void reset_floating_point(void)
{
#if defined(__x86_64__)
    unsigned plain = 0x1f80;
    __asm__ volatile("fninit\n\tldmxcsr %0" : : "m"(plain));
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(0UL));
#endif
}

static int map_region(const struct region *r, long long offset)
{
    int flags = MAP_SHARED | MAP_FIXED | MAP_POPULATE;
    void *got = mmap(base + offset, (size_t)r->n_bytes, PROT_READ | PROT_WRITE, flags, memory, (off_t)offset);
    return got == MAP_FAILED ? -1 : 0;
}

static int map_set(long long set)
{
    for (long long i = 0; i < setup.n_operands; i++)
        if (map_region(&operands[i], setup.sets_at + set * setup.set_bytes + operands[i].offset))
            return -1;
    return 0;
}

/* Page faults that the calls would otherwise take inside the clock: the library's code and constants, libc's copying, the
 * upper part of the stack. Kernels before 5.14 refuse the advice; the first call then pays for its faults. More than that
 * (all of libc, the whole stack) doubled the cost of a command on a virtual machine, for pages that kernels do not use. */
static void fault_in(void)
{
    for (int i = 0; i < n_segments; i++)
        madvise(segments[i].start, segments[i].n_bytes, MADV_POPULATE_READ);
    char *page = (char *)((uintptr_t)__builtin_frame_address(0) & ~(page_bytes - 1));
    madvise(page - WARM_STACK_BYTES, WARM_STACK_BYTES, MADV_POPULATE_WRITE);
    char from[64], to[64];
    volatile size_t n = sizeof from; /* not constant, so that libc is called */
    memset(from, 0, n);
    memcpy(to, from, n);
    __asm__ volatile("" : : "r"(to) : "memory");
}

static int remember_segments(struct dl_phdr_info *info, size_t size, void *address)
{
    (void)size;
    if (info->dlpi_addr != *(ElfW(Addr) *)address)
        return 0;
    for (int i = 0; i < info->dlpi_phnum && n_segments < MOST_SEGMENTS; i++) {
        const ElfW(Phdr) *p = &info->dlpi_phdr[i];
        if (p->p_type != PT_LOAD || (p->p_flags & PF_W))
            continue;
        uintptr_t start = (info->dlpi_addr + p->p_vaddr) & ~(page_bytes - 1);
        uintptr_t end = (info->dlpi_addr + p->p_vaddr + p->p_memsz + page_bytes - 1) & ~(page_bytes - 1);
        segments[n_segments].start = (char *)start;
        segments[n_segments++].n_bytes = end - start;
    }
    return 0;
}

/* The reason why the library or its entry cannot be had, or NULL. */
static const char *load(void)
{
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (handle)
        entry = (entry_function *)(uintptr_t)dlsym(handle, symbol);
    if (!entry) {
        const char *why = dlerror();
        return why ? why : "the entry is a null symbol";
    }
    dl_iterate_phdr(remember_segments, &((struct link_map *)handle)->l_addr);
    return NULL;
}

static void limit_child(long long cpu_s)
{
    evo_limit(RLIMIT_CPU, (rlim_t)cpu_s, (rlim_t)cpu_s + 1);
    if (!setup.trusted)
        evo_limit(RLIMIT_NPROC, 0, 0);
}

static void **pointers_of(long long set)
{
    return pointers + set * (setup.n_operands + setup.n_shared);
}

static _Noreturn void child(const struct command *c, int go, int ready, int code)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != zygote)
        _exit(5);
    for (long long i = 0; i < setup.n_shared; i++)
        if (map_region(&shared[i], shared[i].offset))
            give_up(ready, "the workspaces cannot be mapped");
    for (long long i = 0; i < c->n_calls; i++)
        if (map_set(c->first + i))
            give_up(ready, "the buffer sets cannot be mapped");
    if (setup.trusted && map_set(setup.n_sets))
        give_up(ready, "the warm-up set cannot be mapped");
    close(0), close(1), close(memory);
    limit_child(c->cpu_s);
    struct report fine = {0};
    if (!setup.trusted) {
        if (write(ready, &fine, sizeof fine) != (ssize_t)sizeof fine)
            _exit(5);
        if (confined && evo_confine_loading(ready))
            give_up(ready, "the loader's filter is refused");
        if (load()) {
            errno = ENOEXEC;
            give_up(ready, "the library does not load again");
        }
    }
    fault_in();
    if (setup.trusted)
        entry(pointers_of(setup.n_sets), sizes);
    else if (confined && evo_confine_candidate(go, ready))
        give_up(ready, "the candidate's filter is refused");
    char word;
    if (write(ready, &fine, sizeof fine) != (ssize_t)sizeof fine || read(go, &word, 1) != 1)
        _exit(5);
    for (long long i = 0; i < c->n_calls; i++) {
        reset_floating_point();
        entry(pointers_of(c->first + i), sizes);
    }
    syscall(SYS_exit_group, code);
    __builtin_unreachable();
}

#endif
