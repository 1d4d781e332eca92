/* Samples where one thread is, by wall-clock time: program counter and the words at the top of its stack. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

/* The stack words kept of a sample. On aarch64 the first is the link register: a leaf function stores it nowhere. */
#define WORDS 32

/* What the handler writes: nothing but these, on the sampled thread alone, so that it needs neither lock nor malloc. */
struct sample {
  uint64_t counter;
  uint64_t weight; /* 1 and the expirations that were merged into this signal */
  uint64_t words[WORDS];
};

struct place {
  const char *file;   /* of the library, null where there is none */
  const char *symbol; /* exported and around the address, null where there is none */
  uint64_t base;
  uint64_t symbol_address;
  uint64_t after_call; /* a call instruction ends at the address */
};

static struct sample *samples;
static size_t capacity;
static volatile size_t taken, lost;
static volatile sig_atomic_t active;
static uintptr_t stack_low, stack_high;
static timer_t timer;
static struct sigaction previous;
static long period;

static void on_signal(int number, siginfo_t *info, void *context) {
  (void)number;
  if (!active || info->si_code != SI_TIMER) return;
  const uint64_t weight = 1 + (uint64_t)(info->si_overrun > 0 ? info->si_overrun : 0);
  const size_t index = taken;
  if (index >= capacity) {
    lost += weight;
    return;
  }
  struct sample *const own = &samples[index];
  const ucontext_t *const state = context;
  size_t word = 0;
#if defined(__x86_64__)
  own->counter = (uint64_t)state->uc_mcontext.gregs[REG_RIP];
  const uintptr_t top = (uintptr_t)state->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
  own->counter = state->uc_mcontext.pc;
  own->words[word++] = state->uc_mcontext.regs[30];
  const uintptr_t top = state->uc_mcontext.sp;
#else
#error "this processor is not known here"
#endif
  own->weight = weight;
  for (size_t step = 0; word < WORDS; ++word, ++step) {
    const uintptr_t at = top + step * sizeof(uint64_t);
    const int inside = at >= stack_low && at + sizeof(uint64_t) <= stack_high;
    own->words[word] = inside ? *(const volatile uint64_t *)at : 0;
  }
  taken = index + 1;
}

/* Prepares sampling of the calling thread; nothing is taken before sampler_resume(). Returns 0 on success. */
int sampler_start(long hertz, size_t most) {
  pthread_attr_t attributes;
  void *low;
  size_t size;
  if (hertz < 1 || hertz > 1000000 || pthread_getattr_np(pthread_self(), &attributes) != 0) return -1;
  const int known = pthread_attr_getstack(&attributes, &low, &size);
  pthread_attr_destroy(&attributes);
  samples = malloc(most * sizeof *samples);
  if (known != 0 || samples == NULL) return -1;
  /* Written once, so that no page is missing when the handler writes to it. */
  memset(samples, 0xff, most * sizeof *samples);
  stack_low = (uintptr_t)low;
  stack_high = stack_low + size;
  capacity = most;
  taken = lost = 0;
  active = 0;
  period = 1000000000 / hertz;

  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = on_signal;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  if (sigaction(SIGPROF, &action, &previous) != 0) return -1;
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event._sigev_un._tid = (pid_t)syscall(SYS_gettid);
  return timer_create(CLOCK_MONOTONIC, &event, &timer);
}

static int arm(long nanoseconds) {
  const struct timespec step = {nanoseconds / 1000000000, nanoseconds % 1000000000};
  const struct itimerspec every = {step, step};
  return timer_settime(timer, 0, &every, NULL);
}

int sampler_resume(void) {
  active = 1;
  return arm(period);
}

int sampler_pause(void) {
  active = 0;
  return arm(0);
}

/* Ends sampling. The samples stay until sampler_free(). */
void sampler_stop(void) {
  active = 0;
  timer_delete(timer);
  /* A signal on its way would end the process under the default action; ignoring it first discards it. */
  signal(SIGPROF, SIG_IGN);
  sigaction(SIGPROF, &previous, NULL);
}

size_t sampler_count(void) { return taken; }
size_t sampler_lost(void) { return lost; }
size_t sampler_words(void) { return WORDS; }
const struct sample *sampler_samples(void) { return samples; }

void sampler_free(void) {
  free(samples);
  samples = NULL;
}

static int follows_call(uint64_t address) {
#if defined(__x86_64__)
  const unsigned char *const end = (const unsigned char *)(uintptr_t)address;
  if (end[-5] == 0xe8) return 1; /* call rel32 */
  for (int length = 2; length <= 7; ++length) {
    if (end[-length] == 0xff && (end[1 - length] & 0x38) == 0x10) return 1; /* call r/m64 */
  }
  return 0;
#else
  uint32_t code;
  if (address % 4 != 0) return 0;
  memcpy(&code, (const void *)(uintptr_t)(address - 4), sizeof code);
  return (code >> 26) == 0x25 || (code & 0xfffffc1f) == 0xd63f0000; /* bl, blr */
#endif
}

/* Resolves addresses, each at least 8 bytes into readable code. */
void sampler_resolve(const uint64_t *addresses, size_t count, struct place *places) {
  for (size_t index = 0; index < count; ++index) {
    struct place *const place = &places[index];
    memset(place, 0, sizeof *place);
    place->after_call = (uint64_t)follows_call(addresses[index]);
    Dl_info found;
    if (dladdr((const void *)(uintptr_t)addresses[index], &found) == 0) continue;
    place->file = found.dli_fname;
    place->base = (uint64_t)(uintptr_t)found.dli_fbase;
    place->symbol = found.dli_sname;
    place->symbol_address = (uint64_t)(uintptr_t)found.dli_saddr;
  }
}
