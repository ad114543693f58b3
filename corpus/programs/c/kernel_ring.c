// The kernel maps a ring of events into the program (io_setup), and writes there, and into buffers, behind calls.
//#oracle: no: the kernel writes when it is done
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <poll.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "check.h"

#define BLOCK 4096
#define BLOCKS 16

// The beginning of the kernel's ring, which programs read on their own.
struct ring {
  unsigned id, number;
  volatile unsigned head, tail;
  unsigned magic, compatible, incompatible, length;
  struct io_event events[];
};

static int submit(aio_context_t context, struct iocb *one) { return syscall(SYS_io_submit, context, 1L, &one); }

static void prepare(struct iocb *one, int what, int fd, void *buffer, long block) {
  memset(one, 0, sizeof *one);
  one->aio_lio_opcode = what;
  one->aio_fildes = fd;
  one->aio_buf = (uintptr_t)buffer;
  one->aio_nbytes = BLOCK;
  one->aio_offset = block * BLOCK;
  one->aio_data = block;
}

static int wait_for(aio_context_t context, struct io_event *event) {
  return syscall(SYS_io_getevents, context, 1L, 1L, event, NULL);
}

int main(void) {
  char name[] = "ring-XXXXXX";
  int fd = mkstemp(name), direct, ends[2];
  unsigned char *buffer;
  struct iocb one;
  struct io_event event;
  unsigned long sum = 0;
  CHECK(fd >= 0 && !unlink(name) && !posix_memalign((void **)&buffer, BLOCK, BLOCK));
  // Not each file system reads and writes past its cache.
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  direct = open(path, O_RDWR | O_DIRECT);
  if (direct < 0) direct = fd;
  for (int round = 0; round < 3; round++) {
    aio_context_t context = 0;
    if (syscall(SYS_io_setup, 8 << round, &context)) {
      puts("the kernel has no rings");
      return 0;
    }
    struct ring *ring = (struct ring *)context;
    CHECK(ring->magic == 0xa10a10a1);
    for (long block = 0; block < BLOCKS; block++) {
      for (int i = 0; i < BLOCK; i++) buffer[i] = (unsigned char)(i * 7 + block + round);
      prepare(&one, IOCB_CMD_PWRITE, direct, buffer, block);
      CHECK(submit(context, &one) == 1 && wait_for(context, &event) == 1);
      CHECK(event.res == BLOCK && event.data == (unsigned long)block);
    }
    for (long block = BLOCKS; block-- > 0;) {
      memset(buffer, 0, BLOCK);
      prepare(&one, IOCB_CMD_PREAD, direct, buffer, block);
      CHECK(submit(context, &one) == 1);
      // As libaio does: no call is made for an event that is there.
      while (ring->head == ring->tail) nanosleep(&(struct timespec){0, 100000}, NULL);
      event = ring->events[ring->head];
      ring->head = (ring->head + 1) % ring->number;
      CHECK(event.res == BLOCK && event.data == (unsigned long)block);
      for (int i = 0; i < BLOCK; i++) sum = sum * 31 + buffer[i];
    }
    // Something is under way when the ring goes.
    CHECK(!pipe(ends));
    prepare(&one, IOCB_CMD_POLL, ends[0], NULL, 0);
    one.aio_buf = POLLIN;
    one.aio_nbytes = one.aio_offset = 0;
    if (submit(context, &one) != 1 && round == 0) puts("the kernel polls nothing");
    CHECK(!syscall(SYS_io_destroy, context) && submit(context, &one) != 1);
    close(ends[0]);
    close(ends[1]);
  }
  printf("%lx\n", sum);
  return 0;
}
