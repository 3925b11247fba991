/* Runs a program in a process of its own, and makes one that fails shorter. */
#ifndef GENERATOR_JUDGE_H
#define GENERATOR_JUDGE_H
#include "draw.h"

static unsigned limit = 30; /* seconds */
static char said[1024];     /* the last line of the last program that was run */
static uint64_t runs;

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static void write_program(FILE *to, const struct drawn *drawn)
{
	fprintf(to, "%u %u %u %u %u %zu\n", drawn->manner.ordered, drawn->manner.rounds, drawn->manner.trust, drawn->manner.busy,
		drawn->manner.limits, drawn->length);
	for (size_t at = 0; at < drawn->length; at++)
		fprintf(to, "%u %u %u %u\n", drawn->steps[at].thread, drawn->steps[at].operation, drawn->steps[at].slot, drawn->steps[at].variant);
	fflush(to);
	rewind(to);
}

/* The other side: what `run` reads. */
static int read_program(FILE *from, struct drawn *drawn)
{
	struct manner *how = &drawn->manner;
	if (fscanf(from, "%u %u %u %u %u %zu", &how->ordered, &how->rounds, &how->trust, &how->busy, &how->limits,
		   &drawn->length) != 6 ||
	    drawn->length > MOST_STEPS)
		return -1;
	for (size_t at = 0; at < drawn->length; at++) {
		struct step *step = &drawn->steps[at];
		unsigned operation;
		if (fscanf(from, "%u %u %u %u", &step->thread, &operation, &step->slot, &step->variant) != 4 || operation >= OPERATIONS)
			return -1;
		step->operation = (enum operation)operation;
	}
	return 0;
}

static void keep_last_line(FILE *from)
{
	char line[sizeof said];
	rewind(from);
	said[0] = 0;
	while (fgets(line, sizeof line, from))
		if (line[0] != '\n')
			memcpy(said, line, sizeof said);
	said[strcspn(said, "\n")] = 0;
}

/* Its exit status, or minus the signal that ended it; -SIGALRM: it took longer than the limit. */
static int run(const struct drawn *drawn, int plain)
{
	FILE *text = tmpfile(), *words = tmpfile();
	int status;
	if (!text || !words)
		impossible("tmpfile");
	write_program(text, drawn);
	runs++;
	pid_t child = fork();
	if (child == 0) {
		setpgid(0, 0);
		dup2(fileno(text), 0);
		dup2(fileno(words), 2);
		if (plain)
			setenv("GENERATOR_PLAIN", "1", 1);
		alarm(limit);
		execl("/proc/self/exe", "generator", "run", objects_folder, (char *)NULL);
		_exit(NOT_POSSIBLE);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		impossible("fork");
	kill(-child, SIGKILL);
	keep_last_line(words);
	fclose(text);
	fclose(words);
	return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

static int is_failure(int end)
{
	return end != WELL && end != NOT_POSSIBLE;
}

static const char *name_of(int end)
{
	static char other[32];
	switch (end) {
	case STALE: return "STALE";
	case REFUSED: return "REFUSED";
	case BROKEN: return "BROKEN";
	case -SIGALRM: return "HANG";
	}
	snprintf(other, sizeof other, end < 0 ? "signal %d" : "status %d", end < 0 ? -end : end);
	return other;
}

/* How many of so many runs end like this; stops at the first where `first`. */
static unsigned fails(const struct drawn *drawn, int end, unsigned times, int plain, int first)
{
	unsigned count = 0;
	for (unsigned at = 0; at < times && !(first && count); at++) {
		int got = run(drawn, plain);
		/* One that only takes its time shows nothing. */
		count += plain ? is_failure(got) && (got != -SIGALRM || end == -SIGALRM) : got == end;
	}
	return count;
}

/* ---- Shorter ----------------------------------------------------------------------------------- */
struct shrinking {
	struct drawn best;
	int end;
	/* A race fails now and then: so many runs until a candidate counts as one that does not. */
	unsigned times;
	double deadline;
};

static int try(struct shrinking *it, const struct drawn *candidate)
{
	if (now() > it->deadline || !fails(candidate, it->end, it->times, 0, 1))
		return 0;
	it->best = *candidate;
	return 1;
}

static int without_steps(struct shrinking *it)
{
	int shorter = 0;
	for (size_t size = (it->best.length + 1) / 2; size > 0; size /= 2)
		for (size_t from = 0; from < it->best.length;) {
			struct drawn candidate = it->best;
			size_t gone = size < candidate.length - from ? size : candidate.length - from;
			memmove(&candidate.steps[from], &candidate.steps[from + gone], (candidate.length - from - gone) * sizeof candidate.steps[0]);
			candidate.length -= gone;
			if (candidate.length && try(it, &candidate))
				shorter = 1;
			else
				from += size;
		}
	return shorter;
}

/* Smaller numbers, one at a time. */
static int with_zeros(struct shrinking *it)
{
	int simpler = 0;
	for (size_t at = 0; at < it->best.length; at++)
		for (int which = 0; which < 3; which++) {
			struct drawn candidate = it->best;
			struct step *step = &candidate.steps[at];
			unsigned *number = which == 0 ? &step->thread : which == 1 ? &step->slot : &step->variant;
			if (*number == 0)
				continue;
			*number = which == 2 && letters[step->operation].are == IN_A_WAY_A_PART && PART(*number) ? *number - PART(*number) : 0;
			simpler |= try(it, &candidate);
		}
	return simpler;
}

static void with_simpler_manner(struct shrinking *it)
{
	struct drawn candidate = it->best;
	candidate.manner.ordered = 1;
	candidate.manner.rounds = candidate.manner.rounds < 3 ? candidate.manner.rounds : 3;
	if (!it->best.manner.ordered && try(it, &candidate))
		it->times = 3;
	for (int which = 0; which < 6; which++) {
		candidate = it->best;
		if (which == 0)
			candidate.manner.busy = 0;
		else if (which == 3)
			candidate.manner.busy &= 2;
		else if (which == 4)
			candidate.manner.limits = 0;
		else if (which == 2)
			candidate.manner.limits &= 1;
		else if (which == 1)
			candidate.manner.trust = 0;
		else if (candidate.manner.ordered)
			candidate.manner.rounds = 1;
		if (memcmp(&candidate.manner, &it->best.manner, sizeof candidate.manner) != 0)
			try(it, &candidate);
	}
}

/* Whether it failed again; `*drawn` is the shortest that does. `*rate`: so many of 20. */
static int shrink(struct drawn *drawn, int end, double seconds, unsigned *rate)
{
	struct shrinking it = {.best = *drawn, .end = end, .deadline = now() + seconds};
	unsigned before = limit;
	/* What hangs is waited for again and again. */
	if (end == -SIGALRM)
		limit = limit / 6 + 1;
	*rate = fails(drawn, end, 20, 0, 0);
	int again = *rate || fails(drawn, end, 80, 0, 1);
	if (again) {
		it.times = *rate == 20 ? 2 : *rate ? 80 / *rate + 1 : 60;
		with_simpler_manner(&it);
		while (without_steps(&it) | with_zeros(&it))
			;
		*drawn = it.best;
	}
	limit = before;
	return again;
}

/* What it ends with, its letters and their ways, as a number: two programs with the same one may show one defect. */
static uint64_t kind_of(const struct drawn *drawn, int end)
{
	uint64_t kind = (uint64_t)end * 0x9e3779b97f4a7c15;
	for (unsigned letter = 0; letter < OPERATIONS; letter++) {
		unsigned in_ways = 0;
		for (size_t at = 0; at < drawn->length; at++)
			if (drawn->steps[at].operation == letter)
				in_ways |= 1U << how_of(&drawn->steps[at]);
		kind = (kind ^ in_ways) * 0x100000001b3;
	}
	return kind;
}

/* ---- As a C program ---------------------------------------------------------------------------- */
static const char *const how_names[HOWS] = {"libc", "by its number", "an object's instruction", "a ring", "a ring whose descriptor is closed",
					    "a number with more bits", "a wrapper of two arguments", "a hidden ring"};

static void print_program(FILE *to, const struct drawn *drawn, const char *words)
{
	static const char *const parts[PARTS] = {"all", "the last page", "the second half"};
	const struct manner *how = &drawn->manner;
	fprintf(to, "/* Seed %llu: %s */\n", (unsigned long long)drawn->seed, words);
	fprintf(to, "#include \"alphabet.h\"\n\nstatic const struct step steps[] = {\n");
	for (size_t at = 0; at < drawn->length; at++) {
		const struct step *step = &drawn->steps[at];
		fprintf(to, "\t{.thread = %u, .operation = OP_%s, .slot = %u, .variant = %u},", step->thread, letters[step->operation].name, step->slot,
			step->variant);
		if (letters[step->operation].are != NUMBERS)
			fprintf(to, " /* %s, %s */", how_names[how_of(step)],
				letters[step->operation].are == IN_A_WAY ? "all" : parts[PART(step->variant)]);
		fprintf(to, "\n");
	}
	fprintf(to,
		"};\n\nint main(int count, char **arguments)\n{\n"
		"\tstruct manner how = {.ordered = %u, .rounds = %u, .trust = %u, .busy = %u, .limits = %u};\n"
		"\treturn run_printed(count, arguments, how, steps, sizeof steps / sizeof *steps);\n}\n",
		how->ordered, how->rounds, how->trust, how->busy, how->limits);
}
#endif
