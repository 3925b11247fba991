/* Runs a program: its threads, in turn or at once. */
#ifndef GENERATOR_PROGRAM_H
#define GENERATOR_PROGRAM_H
#include "operations.h"

static void take(const struct step *step)
{
	struct slot *slot = &slots[step->slot % SLOTS];
	if (getenv("GENERATOR_TRACE"))
		fprintf(stderr, "thread %u: %s slot %u variant %u\n", step->thread, letters[step->operation].name, step->slot, step->variant);
	pthread_mutex_lock(&slot->lock);
	switch (step->operation) {
#define X(name, variants, are) case OP_##name: op_##name(slot, step->variant); break;
		ALPHABET(X)
#undef X
	case OPERATIONS: break;
	}
	if (slot->kind == HUGE && !has_huge_pages(slot->at, slot->length))
		drop(slot);
	pthread_mutex_unlock(&slot->lock);
}

static pthread_barrier_t all;
static struct timespec began;
static struct {
	pthread_mutex_t lock;
	pthread_cond_t passed;
	size_t next;
} turn = {.lock = PTHREAD_MUTEX_INITIALIZER, .passed = PTHREAD_COND_INITIALIZER};

static void wait_for_turn(size_t number)
{
	pthread_mutex_lock(&turn.lock);
	while (manner.ordered && turn.next != number)
		pthread_cond_wait(&turn.passed, &turn.lock);
	pthread_mutex_unlock(&turn.lock);
}

/* Rounds after the first have half a second together. */
static int is_over(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return (now.tv_sec - began.tv_sec) * 1000 + (now.tv_nsec - began.tv_nsec) / 1000000 > 500;
}

static void *thread_of_program(void *number)
{
	pthread_barrier_wait(&all);
	for (size_t at = 0; at < program_length * manner.rounds; at++) {
		const struct step *step = &program[at % program_length];
		if (step->thread != (unsigned)(uintptr_t)number)
			continue;
		wait_for_turn(at);
		take(step);
		if (!manner.ordered && at >= program_length && is_over())
			break;
		if (!manner.ordered)
			continue;
		pthread_mutex_lock(&turn.lock);
		turn.next++;
		pthread_cond_broadcast(&turn.passed);
		pthread_mutex_unlock(&turn.lock);
	}
	/* Signals reach a thread until all have come here. */
	pthread_barrier_wait(&all);
	return NULL;
}

static int run_program(struct manner how, const struct step *steps, size_t length)
{
	manner = how;
	program = steps;
	program_length = length;
	for (size_t at = 0; at < SLOTS; at++)
		slots[at] = (struct slot){.lock = PTHREAD_MUTEX_INITIALIZER, .file = -1};
	for (size_t at = 0; at < OBJECTS; at++)
		pthread_mutex_init(&objects[at].lock, NULL);
	answer_signals();
	be_busy(how.busy);
	pny_registry_config config = {.size = sizeof config, .backend = PNY_BACKEND_IO_URING};
	config.flags = how.trust ? PNY_TRUST_SHARED_MEMORY : 0;
	config.max_regions = how.limits & 1 ? 3 : 0;
	config.coarsen = how.limits & 2 ? 16 * PAGE : 0;
	if (make_registry(&config) != PNY_OK) {
		fprintf(stderr, "not possible here: pny_registry_create: %s\n", pny_last_error());
		return NOT_POSSIBLE;
	}
	end_busy();
	start_device();
	clock_gettime(CLOCK_MONOTONIC, &began);
	pthread_barrier_init(&all, NULL, THREADS);
	for (uintptr_t at = 0; at < THREADS; at++)
		if (pthread_create(&threads[at], NULL, thread_of_program, (void *)at))
			impossible("pthread_create");
	for (size_t at = 0; at < THREADS; at++)
		pthread_join(threads[at], NULL);
	for (size_t at = 0; at < SLOTS; at++) {
		give_back(&slots[at].held);
		drop(&slots[at]);
	}
	if (!is_plain() && pny_registry_destroy(registry) != PNY_OK) {
		fprintf(stderr, "REFUSED: pny_registry_destroy: %s\n", pny_last_error());
		return REFUSED;
	}
	return WELL;
}

/* The main function of a program that `generator` has printed: its argument is the folder of objects. */
__attribute__((unused)) static int run_printed(int count, char **arguments, struct manner how, const struct step *steps, size_t length)
{
	if (count > 1 && strcmp(arguments[1], "device") == 0)
		return device();
	if (count > 1)
		objects_folder = arguments[1];
	int end = run_program(how, steps, length);
	puts(end == WELL ? "completed" : "failed");
	return end;
}
#endif
