/* Samples where the calling thread is: program counter and the words at the top of its stack, by wall-clock time. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>

#define SAMPLES 400000
#define WORDS 24

static uint64_t counters[SAMPLES];
static uint64_t stacks[SAMPLES][WORDS];
static volatile int taken;
static timer_t timer;

static void sample(int signal_number, siginfo_t *info, void *context) {
  (void)signal_number;
  (void)info;
  const ucontext_t *state = context;
  const int index = taken;
  if (index >= SAMPLES) return;
#if defined(__x86_64__)
  counters[index] = (uint64_t)state->uc_mcontext.gregs[REG_RIP];
  const uint64_t *top = (const uint64_t *)state->uc_mcontext.gregs[REG_RSP];
#elif defined(__aarch64__)
  counters[index] = state->uc_mcontext.pc;
  const uint64_t *top = (const uint64_t *)state->uc_mcontext.sp;
#else
#error "unknown processor"
#endif
  for (int word = 0; word < WORDS; ++word) stacks[index][word] = top[word];
  taken = index + 1;
}

int sampler_start(long hertz) {
  struct sigaction action;
  memset(&action, 0, sizeof action);
  action.sa_sigaction = sample;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  if (sigaction(SIGPROF, &action, NULL) != 0) return -1;
  struct sigevent event;
  memset(&event, 0, sizeof event);
  event.sigev_notify = SIGEV_THREAD_ID;
  event.sigev_signo = SIGPROF;
  event._sigev_un._tid = (int)syscall(SYS_gettid);
  if (timer_create(CLOCK_MONOTONIC, &event, &timer) != 0) return -1;
  taken = 0;
  const struct itimerspec every = {{0, 1000000000 / hertz}, {0, 1000000000 / hertz}};
  return timer_settime(timer, 0, &every, NULL);
}

int sampler_stop(void) {
  timer_delete(timer);
  return taken;
}

const uint64_t *sampler_counters(void) { return counters; }
const uint64_t *sampler_stacks(void) { return &stacks[0][0]; }
int sampler_words(void) { return WORDS; }
