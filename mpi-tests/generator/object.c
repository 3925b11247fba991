/*
 * Objects that a generated program loads.
 *
 *   -DSIX          makes system calls with an instruction of its own
 *   -DTWO          the same by a wrapper of two arguments; at -O0 the number goes through the stack
 *   -DCONSTRUCTOR  its constructor asks for the hooks
 *   (nothing)      has memory alone
 */
#include <stddef.h>

#ifdef SIX
long object_six(long number, long a, long b, long c, long d, long e, long f)
{
	long answer;
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	__asm__ volatile("syscall"
			 : "=a"(answer)
			 : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
			 : "rcx", "r11", "memory");
	return answer;
}
#endif

#ifdef TWO
static long two(long number, long a, long b)
{
	long answer;
	__asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
	return answer;
}

long object_two(void *at, size_t length)
{
	return two(11, (long)at, (long)length);
}
#endif

#ifdef CONSTRUCTOR
#include <pinyard.h>
#include <stdlib.h>
__attribute__((constructor)) static void begin(void)
{
	if (!getenv("GENERATOR_PLAIN"))
		pny_hooks_install();
}
#endif

/* Memory that goes with the object. */
unsigned char object_bytes[16 * 4096] __attribute__((aligned(4096)));
