/* Hides AVX-512, VNNI and AMX from a program, to measure it on an x86-64 processor as one that has only AVX2.

     cc -O2 -shared -fPIC -o out/without_vnni.so lab/tools/without_vnni.c
     LD_PRELOAD=$PWD/out/without_vnni.so antiphon serve --model tiny

   The kernel lets CPUID raise a signal (arch_prctl, ARCH_SET_CPUID; the flag cpuid_fault in /proc/cpuinfo).
   The signal's handler executes the instruction and clears the bits. /proc/cpuinfo, which Antiphon reads,
   lacks the flags, too, if open() reads it. A program with its own handler of SIGSEGV ends at its next CPUID.
   What the C library chose before this library was loaded (memcpy) still uses AVX-512. */

#define _GNU_SOURCE
#include <cpuid.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

enum { ARCH_SET_CPUID = 0x1012, FEATURES = 7, CPUID_BYTES = 2 };
#define BIT(n) (1u << (n))

/* AVX-512 F, DQ, IFMA, PF, ER, CD, BW, VL */
static const unsigned EBX_0 = BIT(16) | BIT(17) | BIT(21) | BIT(26) | BIT(27) | BIT(28) | BIT(30) | BIT(31);
/* AVX-512 VBMI, VBMI2, VNNI, BITALG, VPOPCNTDQ */
static const unsigned ECX_0 = BIT(1) | BIT(6) | BIT(11) | BIT(12) | BIT(14);
/* AVX-512 4VNNIW, 4FMAPS, VP2INTERSECT; AMX BF16; AVX-512 FP16; AMX tiles, INT8 */
static const unsigned EDX_0 = BIT(2) | BIT(3) | BIT(8) | BIT(22) | BIT(23) | BIT(24) | BIT(25);
/* AVX-VNNI, AVX-512 BF16, AMX FP16, AVX-IFMA */
static const unsigned EAX_1 = BIT(4) | BIT(5) | BIT(21) | BIT(23);
/* AVX-VNNI INT8, AVX NE-CONVERT, AMX complex, AVX-VNNI INT16, AVX10 */
static const unsigned EDX_1 = BIT(4) | BIT(5) | BIT(8) | BIT(10) | BIT(19);

static long set_faulting(int is_on) { return syscall(SYS_arch_prctl, ARCH_SET_CPUID, !is_on); }

static void on_fault(int number, siginfo_t *info, void *context) {
  greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
  int is_cpuid = info->si_code == SI_KERNEL && !memcmp((void *)registers[REG_RIP], "\x0f\xa2", CPUID_BYTES);
  if (!is_cpuid) { /* a fault of the program's own */
    signal(number, SIG_DFL);
    return;
  }
  unsigned leaf = registers[REG_RAX], part = registers[REG_RCX], a, b, c, d;
  set_faulting(0);
  __cpuid_count(leaf, part, a, b, c, d);
  set_faulting(1);
  if (leaf == FEATURES && part == 0) {
    b &= ~EBX_0;
    c &= ~ECX_0;
    d &= ~EDX_0;
  } else if (leaf == FEATURES && part == 1) {
    a &= ~EAX_1;
    d &= ~EDX_1;
  }
  registers[REG_RAX] = a, registers[REG_RBX] = b, registers[REG_RCX] = c, registers[REG_RDX] = d;
  registers[REG_RIP] += CPUID_BYTES;
}

static int is_hidden(const char *flag) {
  return !strncmp(flag, "avx512", 6) || !strncmp(flag, "amx_", 4) || !strcmp(flag, "avx_vnni");
}

/* A file in memory with the lines of /proc/cpuinfo, without the hidden flags. */
static int open_cpuinfo(int (*real_open)(const char *, int, ...)) {
  static char line[1 << 14];
  FILE *source = fdopen(real_open("/proc/cpuinfo", O_RDONLY), "r");
  int found = memfd_create("cpuinfo", 0);
  while (source && fgets(line, sizeof line, source)) {
    char *rest = line, *word;
    while ((word = strsep(&rest, " "))) {
      word[strcspn(word, "\n")] = 0;
      if (!is_hidden(word)) dprintf(found, "%s%s", word, rest ? " " : "\n");
      else if (!rest) dprintf(found, "\n");
    }
  }
  if (source) fclose(source);
  lseek(found, 0, SEEK_SET);
  return found;
}

#define OPEN(name)                                                                     \
  int name(const char *path, int flags, ...) {                                         \
    va_list more;                                                                      \
    va_start(more, flags);                                                             \
    int mode = va_arg(more, int);                                                      \
    va_end(more);                                                                      \
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, #name);                \
    return strcmp(path, "/proc/cpuinfo") ? real_open(path, flags, mode) : open_cpuinfo(real_open); \
  }
OPEN(open)
OPEN(open64)

__attribute__((constructor)) static void start(void) {
  struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_NODEFER};
  sigaction(SIGSEGV, &action, NULL);
  if (set_faulting(1)) {
    fputs("without_vnni: this processor or its kernel cannot let CPUID raise a signal\n", stderr);
    _exit(1);
  }
}
