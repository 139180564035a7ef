/*
 * What the native module calls of macOS's libSystem, for Linux on x86-64.
 *
 * tools/macos/module.py gives the module the address of mac_NAME where macOS has NAME ('$' is written '_'), and
 * otherwise that of glibc's NAME. So only what differs stands here: names that glibc lacks, numbers of flags, layouts of
 * structures. The values are those of macOS's headers (sys/fcntl.h, sys/mman.h, sys/stat.h, sys/signal.h, pthread.h,
 * unistd.h). What the module has no reason to call ends the process with a message.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void refuse(const char *call, long value)
{
    fprintf(stderr, "tools/macos/system.c: %s is not replaced (%#lx)\n", call, value);
    abort();
}

/* Thread-local variables: the code calls the first word of a descriptor { function, key, offset } with the descriptor
 * in rdi, and expects that no register but rax changes (dyld, threadLocalHelpers.s). */

static const char *thread_template;
static size_t thread_template_bytes;
static __thread char *thread_block;

void mac_set_thread_template(const char *template, size_t bytes)
{
    thread_template = template;
    thread_template_bytes = bytes;
}

__attribute__((used)) void *mac_thread_variable(const uint64_t *descriptor)
{
    if (!thread_block) {
        if (posix_memalign((void **)&thread_block, 64, thread_template_bytes))
            abort();
        memcpy(thread_block, thread_template, thread_template_bytes);
    }
    return thread_block + descriptor[2];
}

__asm__(".globl mac__tlv_bootstrap\n"
        "mac__tlv_bootstrap:\n"
        "push %rbp\n mov %rsp, %rbp\n"
        "push %rbx\n push %rcx\n push %rdx\n push %rsi\n push %rdi\n push %r8\n push %r9\n push %r10\n push %r11\n"
        "and $-64, %rsp\n sub $512, %rsp\n fxsave64 (%rsp)\n"
        "call mac_thread_variable\n"
        "fxrstor64 (%rsp)\n lea -72(%rbp), %rsp\n"
        "pop %r11\n pop %r10\n pop %r9\n pop %r8\n pop %rdi\n pop %rsi\n pop %rdx\n pop %rcx\n pop %rbx\n"
        "pop %rbp\n ret\n");

extern char __dso_handle;
extern int __cxa_thread_atexit_impl(void (*)(void *), void *, void *);

void mac__tlv_atexit(void (*function)(void *), void *object)
{
    __cxa_thread_atexit_impl(function, object, &__dso_handle);
}

/* dyld: images are asked for to print a backtrace, which then has no names. Nothing is bound lazily. */

uint32_t mac__dyld_image_count(void) { return 0; }
const void *mac__dyld_get_image_header(uint32_t index) { return NULL; }
const char *mac__dyld_get_image_name(uint32_t index) { return NULL; }
long mac__dyld_get_image_vmaddr_slide(uint32_t index) { return 0; }
void mac_dyld_stub_binder(void) { refuse("dyld_stub_binder", 0); }

/* Memory and small functions. */

int *mac___error(void) { return &errno; }
void mac___bzero(void *at, size_t bytes) { memset(at, 0, bytes); }
int mac_CCRandomGenerateBytes(void *at, size_t bytes) { return getrandom(at, bytes, 0) == (ssize_t)bytes ? 0 : -1; }

void mac_memset_pattern16(void *at, const void *pattern, size_t bytes)
{
    char *next = at;
    for (; bytes >= 16; bytes -= 16, next += 16)
        memcpy(next, pattern, 16);
    memcpy(next, pattern, bytes);
}

void *mac_mmap(void *at, size_t bytes, int protection, int flags, int file, int64_t offset)
{
    if (flags & ~0x1013)
        refuse("mmap", flags);
    return mmap(at, bytes, protection, (flags & 0x13) | (flags & 0x1000 ? MAP_ANONYMOUS : 0), file, offset);
}

long mac_sysconf(int name)
{
    switch (name) {
    case 29:
        return sysconf(_SC_PAGESIZE);
    case 58:
        return sysconf(_SC_NPROCESSORS_ONLN);
    }
    refuse("sysconf", name);
    return -1;
}

extern int __xpg_strerror_r(int, char *, size_t);
int mac_strerror_r(int code, char *text, size_t bytes) { return __xpg_strerror_r(code, text, bytes); }

/* Files. */

int mac_open(const char *path, int flags, int mode)
{
    static const int other[][2] = {
        { 0x8, O_APPEND }, { 0x200, O_CREAT }, { 0x400, O_TRUNC }, { 0x800, O_EXCL }, { 0x1000000, O_CLOEXEC },
    };
    int ours = flags & O_ACCMODE, rest = flags & ~O_ACCMODE;

    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (rest & other[i][0]) {
            ours |= other[i][1];
            rest &= ~other[i][0];
        }
    if (rest)
        refuse("open", rest);
    return open(path, ours, mode);
}

int mac_close_NOCANCEL(int file) { return close(file); }

struct mac_stat {
    int32_t device;
    uint16_t mode, links;
    uint64_t inode;
    uint32_t user, group;
    int32_t special_device;
    struct timespec accessed, modified, changed, born;
    int64_t bytes, blocks;
    int32_t block_bytes;
    uint32_t flags, generation;
    int32_t spare;
    int64_t spares[2];
};

int mac_fstat_INODE64(int file, struct mac_stat *result)
{
    struct stat ours;

    if (fstat(file, &ours))
        return -1;
    *result = (struct mac_stat){
        .device = ours.st_dev, .mode = ours.st_mode, .links = ours.st_nlink, .inode = ours.st_ino,
        .user = ours.st_uid, .group = ours.st_gid, .special_device = ours.st_rdev,
        .accessed = ours.st_atim, .modified = ours.st_mtim, .changed = ours.st_ctim,
        .bytes = ours.st_size, .blocks = ours.st_blocks, .block_bytes = ours.st_blksize,
    };
    return 0;
}

void *mac_opendir_INODE64(const char *path) { refuse("opendir", 0); return NULL; }
int mac_readdir_r_INODE64(void *folder, void *entry, void **result) { refuse("readdir_r", 0); return 0; }

/* Threads. Mutexes and conditions are larger on macOS than here; those initialised as constants bear a signature where
 * glibc expects zeros. */

static void without_signature(void *at, uint64_t signature, size_t bytes)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

    if (*(volatile uint64_t *)at != signature)
        return;
    pthread_mutex_lock(&lock);
    if (*(volatile uint64_t *)at == signature)
        memset(at, 0, bytes);
    pthread_mutex_unlock(&lock);
}

#define MUTEX(mutex) without_signature(mutex, 0x32AAABA7, sizeof *(mutex))
#define CONDITION(condition) without_signature(condition, 0x3CB0B1BB, sizeof *(condition))

int mac_pthread_mutex_lock(pthread_mutex_t *mutex) { MUTEX(mutex); return pthread_mutex_lock(mutex); }
int mac_pthread_mutex_trylock(pthread_mutex_t *mutex) { MUTEX(mutex); return pthread_mutex_trylock(mutex); }
int mac_pthread_mutex_destroy(pthread_mutex_t *mutex) { MUTEX(mutex); return pthread_mutex_destroy(mutex); }

int mac_pthread_mutexattr_settype(pthread_mutexattr_t *attributes, int type)
{
    static const int types[] = { PTHREAD_MUTEX_NORMAL, PTHREAD_MUTEX_ERRORCHECK, PTHREAD_MUTEX_RECURSIVE };

    if (type < 0 || type > 2)
        refuse("pthread_mutexattr_settype", type);
    return pthread_mutexattr_settype(attributes, types[type]);
}

int mac_pthread_cond_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    CONDITION(condition);
    return pthread_cond_wait(condition, mutex);
}

int mac_pthread_cond_signal(pthread_cond_t *condition) { CONDITION(condition); return pthread_cond_signal(condition); }
int mac_pthread_cond_broadcast(pthread_cond_t *condition) { CONDITION(condition); return pthread_cond_broadcast(condition); }
int mac_pthread_cond_destroy(pthread_cond_t *condition) { CONDITION(condition); return pthread_cond_destroy(condition); }

int mac_pthread_setname_np(const char *name) { return pthread_setname_np(pthread_self(), name); }

int mac_pthread_threadid_np(pthread_t thread, uint64_t *id)
{
    *id = syscall(SYS_gettid);
    return 0;
}

static void *stack_of(pthread_t thread, size_t *bytes)
{
    pthread_attr_t attributes;
    void *lowest;

    if (pthread_getattr_np(thread, &attributes) || pthread_attr_getstack(&attributes, &lowest, bytes))
        abort();
    pthread_attr_destroy(&attributes);
    return lowest;
}

/* macOS names the highest address of a stack. */
void *mac_pthread_get_stackaddr_np(pthread_t thread)
{
    size_t bytes;
    char *lowest = stack_of(thread, &bytes);

    return lowest + bytes;
}

size_t mac_pthread_get_stacksize_np(pthread_t thread)
{
    size_t bytes;

    stack_of(thread, &bytes);
    return bytes;
}

struct mac_stack {
    void *lowest;
    size_t bytes;
    int flags;
};

int mac_sigaltstack(const struct mac_stack *stack, struct mac_stack *before)
{
    stack_t ours, ours_before;

    if (stack)
        ours = (stack_t){ .ss_sp = stack->lowest, .ss_size = stack->bytes, .ss_flags = stack->flags & 4 ? SS_DISABLE : 0 };
    if (sigaltstack(stack ? &ours : NULL, before ? &ours_before : NULL))
        return -1;
    if (before)
        *before = (struct mac_stack){ ours_before.ss_sp, ours_before.ss_size, ours_before.ss_flags & SS_DISABLE ? 4 : 0 };
    return 0;
}

sem_t *mac_dispatch_semaphore_create(long value)
{
    sem_t *semaphore = malloc(sizeof *semaphore);

    if (semaphore)
        sem_init(semaphore, 0, value);
    return semaphore;
}

void mac_dispatch_release(sem_t *semaphore)
{
    sem_destroy(semaphore);
    free(semaphore);
}

long mac_dispatch_semaphore_signal(sem_t *semaphore) { return sem_post(semaphore); }

long mac_dispatch_semaphore_wait(sem_t *semaphore, uint64_t until)
{
    if (until != UINT64_MAX)
        refuse("dispatch_semaphore_wait", until);
    while (sem_wait(semaphore))
        ;
    return 0;
}
