/* Memory of tensors that ends, or begins, at a page that nobody may touch: reading past it ends the process.
 *
 * LD_PRELOAD this into Python and every block that torch takes with posix_memalign lies so. What was freed is never
 * given out again, and may not be touched either. Blocks are filled with a pattern, so that results show unset memory.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE ((size_t)4096)
#define UNIT ((size_t)16) /* blocks end within so many bytes of the closed page, whatever alignment was asked for */
#define ARENA ((size_t)1 << 44)

static char *arena;
static size_t used;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

typedef struct { size_t pages, size; } Header; /* in the page before each block, which is closed after writing */

static int is_ours(const void *block) { return arena && (char *)block >= arena && (char *)block < arena + ARENA; }

static void start(void) __attribute__((constructor));
static void start(void) {
    void *reserved = mmap(NULL, ARENA, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved != MAP_FAILED) arena = reserved;
}

int posix_memalign(void **result, size_t alignment, size_t size) {
    static int count;
    if (!arena || alignment > PAGE) {
        int (*real)(void **, size_t, size_t) = dlsym(RTLD_NEXT, "posix_memalign");
        return real(result, alignment, size);
    }
    size_t wanted = (size + UNIT - 1) / UNIT * UNIT, pages = (wanted + PAGE - 1) / PAGE;
    if (size > (size_t)256 << 20) return ENOMEM; /* no call needs more, and filling it takes time */
    pthread_mutex_lock(&lock);
    char *header = arena + used;
    used += (pages + 2) * PAGE; /* the header's page, the block, and the closed page behind it */
    int at_start = ++count % 4 == 0;
    int failed = used > ARENA || mprotect(header, (pages + 1) * PAGE, PROT_READ | PROT_WRITE);
    pthread_mutex_unlock(&lock);
    if (failed) return ENOMEM;
    *(Header *)header = (Header){pages, size};
    char *block = header + PAGE + (at_start ? 0 : pages * PAGE - wanted);
    if (size <= 1 << 20) memset(header + PAGE, 0x5a, pages * PAGE);
    mprotect(header, PAGE, PROT_NONE);
    *result = block;
    return 0;
}

static char *header_of(void *block) {
    char *page = (char *)((uintptr_t)block & ~(PAGE - 1));
    return page - PAGE;
}

void free(void *block) {
    static void (*real)(void *);
    if (is_ours(block)) {
        char *header = header_of(block);
        mprotect(header, PAGE, PROT_READ);
        size_t length = (((Header *)header)->pages + 1) * PAGE;
        madvise(header, length, MADV_DONTNEED);
        mprotect(header, length, PROT_NONE);
        return;
    }
    if (!real) real = dlsym(RTLD_NEXT, "free");
    real(block);
}
