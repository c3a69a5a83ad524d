/* The floor of admission: vkResetFences + vkQueueSubmit2, and nothing else.

   The caller passes the functions and handles that its own Vulkan device has, so both
   sides of the comparison submit the same recorded commands in the same run. */
#include <stdint.h>
#include <time.h>

typedef int (*reset_fences)(void *device, uint32_t count, const uint64_t *fences);
typedef int (*queue_submit2)(void *queue, uint32_t count, const void *info, uint64_t fence);
typedef int (*wait_for_fences)(void *device, uint32_t count, const uint64_t *fences,
                               uint32_t all, uint64_t timeout);

static int64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

/* Writes the admission time of every sample, in nanoseconds; 0 when all went well. */
int measure(reset_fences reset, queue_submit2 submit, wait_for_fences wait, void *device,
            void *queue, const uint64_t *fence, const void *info, int samples,
            int64_t *nanoseconds) {
    for (int i = 0; i < samples; i++) {
        int64_t start = now();
        int result = reset(device, 1, fence);
        if (result == 0) result = submit(queue, 1, info, *fence);
        nanoseconds[i] = now() - start;
        if (result == 0) result = wait(device, 1, fence, 1, 10000000000ULL);
        if (result != 0) return result;
    }
    return 0;
}
