/*
 * Draws programs that change mappings and send, runs each, and judges it by the bytes that a device sees.
 *
 *   generator --objects FOLDER [--seconds N | --programs N] [--seed N] [--exceptions] [--keep-going]
 *             [--without LETTER[:VARIANT]]... [--out FOLDER] [--shrink SECONDS] [--limit SECONDS]
 *
 * A program's seed is the first one and its number. Ends with 1 where a program failed that is right
 * without the cache, and with 77 where no io_uring can be had. GENERATOR_TRACE shows the steps.
 */
#include "judge.h"

struct options {
	double seconds, shrinking;
	uint64_t programs, seed;
	int keep_going;
	const char *out;
	struct choice choice;
};

static struct {
	uint64_t programs, steps, impossible, unsound, failures, known;
} counted;

/* What was found before, where it keeps going. */
#define KNOWN 256
static struct {
	uint64_t kind, seed;
} known[KNOWN];

static void usage(void)
{
	fprintf(stderr, "usage: generator --objects FOLDER [--seconds N | --programs N] [--seed N] [--exceptions] [--keep-going]\n"
			"                 [--without LETTER[:VARIANT]]... [--out FOLDER] [--shrink SECONDS] [--limit SECONDS]\n");
	exit(2);
}

static void leave_out(struct choice *choice, const char *letter)
{
	size_t length = strcspn(letter, ":");
	if (strncmp(letter, "way:", 4) == 0) {
		choice->without_ways |= 1U << atoi(letter + 4) % HOWS;
		return;
	}
	if (strcmp(letter, "busy") == 0) {
		choice->without_busy = 1;
		return;
	}
	for (unsigned at = 0; at < OPERATIONS && choice->withouts < 64; at++)
		if (strlen(letters[at].name) == length && strncmp(letters[at].name, letter, length) == 0) {
			choice->without[choice->withouts].operation = (enum operation)at;
			choice->without[choice->withouts++].variant = letter[length] ? atoi(letter + length + 1) : -1;
			return;
		}
	fprintf(stderr, "generator: there is no letter %s\n", letter);
	exit(2);
}

static struct options read_options(int count, char **arguments)
{
	struct options options = {.seconds = 60, .shrinking = 60, .seed = (uint64_t)time(NULL) * 1000000};
	for (int at = 1; at < count; at++) {
		const char *name = arguments[at], *value = at + 1 < count ? arguments[at + 1] : NULL;
		if (strcmp(name, "--exceptions") == 0) {
			options.choice.exceptions = 1;
			continue;
		}
		if (strcmp(name, "--keep-going") == 0) {
			options.keep_going = 1;
			continue;
		}
		if (!value)
			usage();
		at++;
		if (strcmp(name, "--objects") == 0)
			objects_folder = value;
		else if (strcmp(name, "--seconds") == 0)
			options.seconds = atof(value);
		else if (strcmp(name, "--programs") == 0)
			options.programs = strtoull(value, NULL, 0);
		else if (strcmp(name, "--seed") == 0)
			options.seed = strtoull(value, NULL, 0);
		else if (strcmp(name, "--without") == 0)
			leave_out(&options.choice, value);
		else if (strcmp(name, "--out") == 0)
			options.out = value;
		else if (strcmp(name, "--shrink") == 0)
			options.shrinking = atof(value);
		else if (strcmp(name, "--limit") == 0)
			limit = (unsigned)atoi(value);
		else
			usage();
	}
	return options;
}

static void show(const struct options *options, const struct drawn *drawn, const char *words)
{
	char path[4096];
	FILE *file;
	print_program(stdout, drawn, words);
	if (!options->out)
		return;
	snprintf(path, sizeof path, "%s/seed-%llu.c", options->out, (unsigned long long)drawn->seed);
	file = fopen(path, "w");
	if (!file)
		impossible(path);
	print_program(file, drawn, words);
	fclose(file);
}

/* A program has failed: is it the cache's, and what is the least of it that fails? */
static void look_into(const struct options *options, struct drawn *drawn, int end)
{
	char words[sizeof said + 256], first[sizeof said];
	unsigned rate = 0;
	struct drawn whole = *drawn;
	memcpy(first, said, sizeof said);
	int again = shrink(drawn, end, options->shrinking, &rate);
	unsigned plain = fails(drawn, end, again && drawn->manner.ordered ? 5 : 40, 1, 1) + fails(&whole, end, 10, 1, 1);
	snprintf(words, sizeof words, "%s; %s. Whole, it fails %u of 20 times%s", name_of(end), first, rate,
		 plain  ? "; it fails without the cache as well, and shows nothing of it"
		 : again ? ""
			 : "; it did not fail again, and is not shortened");
	uint64_t kind = kind_of(drawn, end);
	for (size_t at = 0; at < counted.known; at++)
		if (known[at].kind == kind) {
			printf("seed %llu: %s, with the letters of seed %llu\n", (unsigned long long)drawn->seed, name_of(end),
			       (unsigned long long)known[at].seed);
			fflush(stdout);
			counted.failures += !plain;
			return;
		}
	if (counted.known < KNOWN) {
		known[counted.known].kind = kind;
		known[counted.known++].seed = drawn->seed;
	}
	printf("seed %llu: %s\n", (unsigned long long)drawn->seed, words);
	show(options, drawn, words);
	if (plain)
		counted.unsound++;
	else
		counted.failures++;
	fflush(stdout);
}

static int generate(const struct options *options)
{
	static struct drawn drawn;
	double end = now() + options->seconds, told = now() + 60;
	printf("seed %llu\n", (unsigned long long)options->seed);
	fflush(stdout);
	while (options->programs ? counted.programs < options->programs : now() < end) {
		draw_program(&drawn, &options->choice, options->seed + counted.programs++);
		int got = run(&drawn, 0);
		counted.steps += drawn.length * drawn.manner.rounds;
		if (got == NOT_POSSIBLE && counted.impossible++ == 0)
			printf("seed %llu: %s\n", (unsigned long long)drawn.seed, said);
		if (got == NOT_POSSIBLE && counted.impossible == 20 && counted.programs == 20)
			break;
		if (is_failure(got))
			look_into(options, &drawn, got);
		if (counted.failures && !options->keep_going)
			break;
		if (now() > told) {
			printf("%llu programs\n", (unsigned long long)counted.programs);
			fflush(stdout);
			told = now() + 60;
		}
	}
	printf("%llu programs, %llu steps, %llu not possible here, %llu that fail without the cache as well; %llu failures\n",
	       (unsigned long long)counted.programs, (unsigned long long)counted.steps, (unsigned long long)counted.impossible,
	       (unsigned long long)counted.unsound, (unsigned long long)counted.failures);
	if (counted.failures)
		return 1;
	if (counted.impossible < counted.programs)
		return 0;
	puts(said);
	return NOT_POSSIBLE;
}

int main(int count, char **arguments)
{
	if (count > 1 && strcmp(arguments[1], "device") == 0)
		return device();
	if (count > 2 && strcmp(arguments[1], "run") == 0) {
		static struct drawn drawn;
		objects_folder = arguments[2];
		if (read_program(stdin, &drawn))
			return NOT_POSSIBLE;
		return run_program(drawn.manner, drawn.steps, drawn.length);
	}
	struct options options = read_options(count, arguments);
	return generate(&options);
}
